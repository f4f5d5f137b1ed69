"""Prints the job that a Kubernetes worker would send to the cluster, by the template in the first argument and the
values in the second."""

import asyncio
import json
import sys
from pathlib import Path

from prefect_kubernetes.worker import KubernetesWorkerJobConfiguration

template = json.loads(Path(sys.argv[1]).read_text())
made = KubernetesWorkerJobConfiguration.from_template_and_values(template, json.loads(sys.argv[2]))
print(json.dumps(asyncio.run(made).job_manifest))
