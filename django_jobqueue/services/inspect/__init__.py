"""Looking without touching: questions about jobs, lanes, queues and minutes, by what they are about.

Those that users ask are in ``django_jobqueue.services``; the others are what the admin, metrics, the command line, the
doctor and the pipeline ask.
"""
