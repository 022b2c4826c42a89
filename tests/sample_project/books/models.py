from django.db import models


class Book(models.Model):
    title = models.CharField(max_length=100, unique=True)
    indexed = models.BooleanField(default=False)


class Order(models.Model):
    customer = models.CharField(max_length=100)
    title = models.CharField(max_length=100)
    state = models.CharField(max_length=20, default="new")
