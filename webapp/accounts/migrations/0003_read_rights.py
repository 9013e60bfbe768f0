"""Rights to read what messages of topics say, of roles and of persons."""

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("accounts", "0002_tokens_end")]

    operations = [
        migrations.CreateModel(
            name="ReadRight",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "topics",
                    models.CharField(max_length=256, help_text="a topic's name, or the beginning of names and a *"),
                ),
                ("role", models.CharField(blank=True, default="", help_text="empty: the user's own", max_length=10)),
                ("allows", models.BooleanField()),
                (
                    "user",
                    models.ForeignKey(
                        default=None,
                        null=True,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="read_rights",
                        to=settings.AUTH_USER_MODEL,
                    ),
                ),
            ],
            options={
                "constraints": [
                    models.UniqueConstraint(
                        condition=models.Q(user=None), fields=("topics", "role"), name="read_right_of_a_role"
                    ),
                    models.UniqueConstraint(
                        condition=models.Q(role=""), fields=("topics", "user"), name="read_right_of_a_person"
                    ),
                    models.CheckConstraint(
                        condition=models.Q(role="", user__isnull=False) | (~models.Q(role="") & models.Q(user=None)),
                        name="read_right_of_one",
                    ),
                ],
            },
        ),
    ]
