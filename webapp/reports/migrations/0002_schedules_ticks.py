import django.utils.timezone
from django.db import migrations, models

# Beat's own timetable was kept in these; nothing uses them now. In an order in which references allow it.
TABLES = ("periodictask", "periodictasks", "crontabschedule", "intervalschedule", "clockedschedule", "solarschedule")
SKIPPED = "skipped: "


def name_skipped_runs(apps, schema_editor):
    """Ticks that were not run were called cancelled."""
    runs = apps.get_model("reports", "ReportRun").objects.filter(state="cancelled", reason__startswith=SKIPPED)
    for run in runs:
        run.state, run.reason = "skipped", run.reason.removeprefix(SKIPPED)
        run.save(update_fields=["state", "reason"])


class Migration(migrations.Migration):
    dependencies = [
        ("reports", "0001_initial"),
    ]

    operations = [
        migrations.AddField(
            model_name="reportschedule",
            name="catch_up",
            field=models.CharField(
                choices=[
                    ("latest", "Run the latest missed one"),
                    ("all", "Run all, at most the latest 10"),
                    ("none", "Run none"),
                ],
                default="latest",
                max_length=10,
            ),
        ),
        migrations.AddField(
            model_name="reportschedule",
            name="decided_until",
            field=models.DateTimeField(default=django.utils.timezone.now, editable=False),
        ),
        migrations.AddField(
            model_name="reportrun",
            name="tick",
            field=models.DateTimeField(default=None, editable=False, null=True),
        ),
        migrations.AddField(
            model_name="reportrun",
            name="note",
            field=models.TextField(blank=True, default=""),
        ),
        migrations.AlterField(
            model_name="reportrun",
            name="state",
            field=models.CharField(
                choices=[
                    ("queued", "Queued"),
                    ("starting", "Starting"),
                    ("running", "Running"),
                    ("succeeded", "Succeeded"),
                    ("failed", "Failed"),
                    ("cancelled", "Cancelled"),
                    ("skipped", "Skipped"),
                ],
                db_index=True,
                default="queued",
                max_length=10,
            ),
        ),
        migrations.AddConstraint(
            model_name="reportrun",
            constraint=models.UniqueConstraint(fields=("schedule", "tick"), name="report_run_tick"),
        ),
        migrations.RunPython(name_skipped_runs, migrations.RunPython.noop),
        *(
            migrations.RunSQL(f"DROP TABLE IF EXISTS django_celery_beat_{table}", migrations.RunSQL.noop)
            for table in TABLES
        ),
    ]
