"""Read-only queries about jobs, lanes, queues and minutes, one module per subject.

The public ones are exported by ``django_jobqueue.services``. The others serve the admin, the metrics, the command line,
the doctor and the pipeline.
"""
