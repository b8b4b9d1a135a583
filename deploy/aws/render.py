"""`python -m deploy.aws.render` (`make templates`): writes the template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from deploy.aws.jobs import add_jobs
from deploy.aws.network import add_network
from deploy.aws.parameters import add_parameters
from deploy.aws.roles import add_roles
from deploy.aws.services import add_services
from deploy.aws.storage import add_storage
from deploy.aws.template import Json, Template
from deploy.aws.watch import add_watch

PLACE: Final = Path(__file__).parent / "trace.json"


def rendered() -> Json:
    template = Template()
    for add in (add_parameters, add_network, add_storage, add_roles, add_services, add_jobs, add_watch):
        add(template)
    return template.document()


def text_of(document: Json) -> str:
    return json.dumps(document, indent=1) + "\n"


def main() -> None:
    PLACE.write_text(text_of(rendered()), encoding="utf-8")


if __name__ == "__main__":
    main()
