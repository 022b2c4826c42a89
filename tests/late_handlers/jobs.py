from django_jobqueue import job


@job(queue="default", name="late.report")
def report() -> None:
    pass
