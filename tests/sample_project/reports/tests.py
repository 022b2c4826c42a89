from django.test import TestCase

from django_jobqueue import services
from django_jobqueue.models import Job
from reports.jobs import write_report
from reports.models import Report


class ReportTests(TestCase):
    databases = ("default", "reports")

    def test_a_job_of_the_second_database_is_stored_and_run_there(self):
        write_report.using(using="reports").send("2026-01-31", orders=3)

        self.assertEqual(Job.objects.using("default").filter(name="reports.write").count(), 0)
        [job] = services.fetch("default", using="reports")
        services.complete(job, write_report(**job.data))
        self.assertEqual(Report.objects.get().orders, 3)
