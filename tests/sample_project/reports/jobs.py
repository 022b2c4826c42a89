from datetime import date

from django_jobqueue import job

from .models import Report


@job(queue="default", name="reports.write", atomic=True)
def write_report(day: str, orders: int) -> int:
    report, _ = Report.objects.update_or_create(day=date.fromisoformat(day), defaults={"orders": orders})
    return report.pk
