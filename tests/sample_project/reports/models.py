from django.db import models


class Report(models.Model):
    day = models.DateField(unique=True)
    orders = models.IntegerField()
