"""What is chosen for each deployment."""

from __future__ import annotations

from deploy.aws.template import Json, Template


def add_parameters(template: Template) -> None:
    template.parameters |= {
        "Prefix": _text("What every name of this deployment begins with.", "trace", "^[a-z][a-z0-9]{0,9}$"),
        "Image": _text("The container image, with its tag.", None, r"^[a-z0-9][\w./:-]+:[\w.-]+$"),
        "CertificateArn": _text(
            "The certificate of the public address, in ACM.",
            None,
            r"^arn:aws[a-z-]*:acm:[a-z0-9-]+:\d{12}:certificate/.+$",
        ),
        "S3PrefixList": _text("The prefix list of S3 in this region.", None, "^pl-[0-9a-f]+$"),
        "RunnerBucket": _text("The bucket that holds the zip of the runner function.", None, "^[a-z0-9][a-z0-9.-]+$"),
        "RunnerKey": _text("The zip's key; another zip needs another key.", None, "^.+[.]zip$"),
        "RunnerRuntime": _text("As `trace udf runner-zip` shows it.", "python3.12", "^python3[.]1[1-3]$"),
        "RunnerArchitecture": _choice("As `trace udf runner-zip` shows it.", "x86_64", "arm64"),
        "Running": _choice("Start the services. Not before databases and secrets are there.", "no", "yes"),
        "Schedules": _choice("What fires cron sources: a process, or EventBridge Scheduler.", "process", "eventbridge"),
        "PublicCidr": _text("From where the public address may be called.", "0.0.0.0/0", r"^[0-9.]+/\d+$"),
        "NodesCidr": _text("Where the nodes of chains are that workers call.", "0.0.0.0/0", r"^[0-9.]+/\d+$"),
        "Nodes": _choice("The secret of nodes has the addresses of the pool `main`.", "no", "yes"),
        "DatabaseClass": _text("Of both databases.", "db.t4g.medium", r"^db[.]\w+[.]\w+$"),
        "WorkersMax": {
            "Type": "Number",
            "Description": "How many workers there are at most.",
            "Default": 8,
            "MinValue": 1,
        },
        "JobsRelease": _text("The release of EMR Serverless for job runs; none: no job runs.", "none", r"^[\w.-]+$"),
        "JobsTag": _text("The tag of the image of job runs, of that release.", "1", r"^[\w.-]+$"),
        "JobsWarm": {
            "Type": "Number",
            "Description": "Drivers and executors that are kept ready, so that job runs start in seconds.",
            "Default": 0,
            "MinValue": 0,
        },
        "JobsMaxCpu": _text("What all job runs may use together.", "64 vCPU", r"^\d+ vCPU$"),
        "JobsMaxMemory": _text("What all job runs may use together.", "256 GB", r"^\d+ GB$"),
        "AlarmEmail": _text("Who gets alarms by mail; empty: nobody.", "", "^$|^[^@ ]+@[^@ ]+$"),
    }
    template.conditions |= {
        "IsRunning": {"Fn::Equals": [{"Ref": "Running"}, "yes"]},
        "ByProcess": {"Fn::Equals": [{"Ref": "Schedules"}, "process"]},
        "ByFunction": {"Fn::Equals": [{"Ref": "Schedules"}, "eventbridge"]},
        "HasNodes": {"Fn::Equals": [{"Ref": "Nodes"}, "yes"]},
        "HasJobs": {"Fn::Not": [{"Fn::Equals": [{"Ref": "JobsRelease"}, "none"]}]},
        "HasWarmJobs": {"Fn::Not": [{"Fn::Equals": [{"Ref": "JobsWarm"}, 0]}]},
        "HasEmail": {"Fn::Not": [{"Fn::Equals": [{"Ref": "AlarmEmail"}, ""]}]},
    }


def _text(about: str, default: str | None, pattern: str) -> Json:
    given = {"Type": "String", "Description": about, "AllowedPattern": pattern}
    return given if default is None else {**given, "Default": default}


def _choice(about: str, default: str, other: str) -> Json:
    return {"Type": "String", "Description": about, "Default": default, "AllowedValues": [default, other]}
