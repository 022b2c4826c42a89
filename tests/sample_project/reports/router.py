class ReportsRouter:
    """Reports are in a database of their own; jobs are in both databases."""

    def db_for_read(self, model, **hints):
        return "reports" if model._meta.app_label == "reports" else None

    db_for_write = db_for_read

    def allow_migrate(self, db, app_label, **hints):
        if app_label == "reports":
            return db == "reports"
        return True if app_label == "jobqueue" else db == "default"
