"""Every token has an end: those without one get a year."""

from datetime import timedelta

from django.db import migrations, models
from django.utils import timezone


def give_a_year(apps, schema_editor):
    tokens = apps.get_model("accounts", "ApiToken")
    tokens.objects.filter(expires_at=None).update(expires_at=timezone.now() + timedelta(days=365))


class Migration(migrations.Migration):
    dependencies = [("accounts", "0001_initial")]

    operations = [
        migrations.RunPython(give_a_year, migrations.RunPython.noop),
        migrations.AlterField("apitoken", "expires_at", models.DateTimeField()),
        migrations.AddField(
            "apitoken",
            "of_machine",
            models.BooleanField(
                default=False, help_text="the command line's: it is no person's, and outlives passwords"
            ),
        ),
    ]
