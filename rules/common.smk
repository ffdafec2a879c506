# Helpers of the rules; no rules here. The logic is in scripts/eagle3_data, this only ties it to Snakemake.

import os
import subprocess
import sys
from pathlib import Path
from shlex import join, quote

from snakemake.exceptions import WorkflowError

SCRIPTS = f"{workflow.basedir}/scripts"
sys.path.insert(0, SCRIPTS)

try:
    from eagle3_data.config import load_config, sections_json
    from eagle3_data.errors import ConfigError, StorageError
    from eagle3_data.modes import PRIVATE_UMASK
    from eagle3_data.passes.planning import Plan
    from eagle3_data.places import check_directory
    from eagle3_data.tokenization.reading.sources import files_of
except ImportError as error:
    raise WorkflowError(
        f"the environment of this workflow is incomplete ({error!r}); run `make environment` and activate .venv"
    )

try:
    CONFIG = load_config(config)
except ConfigError as error:
    raise WorkflowError(str(error))

# Inherited by every job, on other machines, too: those read this file again.
if CONFIG.private:
    os.umask(PRIVATE_UMASK)

RESULTS = f"results/{CONFIG.run}"
LOGS = f"logs/{CONFIG.run}"
PLAN = Plan(CONFIG, Path(RESULTS))
try:
    PLAN.check_store()
    for place in (RESULTS, LOGS):
        check_directory(Path(place), writable=not workflow.dryrun)
except StorageError as error:
    raise WorkflowError(str(error))

DEMO_CONVERSATIONS = f"{workflow.basedir}/config/demo/conversations.jsonl"
# What a user calls to go on: for records written by jobs, which are other processes, perhaps on other machines.
os.environ.setdefault(
    "EAGLE3_DATA_COMMAND",
    join(["snakemake", *("extract" if argument == "status" else argument for argument in sys.argv[1:])]),
)
# Under `--sdm conda` a rule's own environment brings its python; otherwise it is the one that runs Snakemake.
IN_CONDA = any(
    str(method).lower().endswith("conda") for method in workflow.deployment_settings.deployment_method
)
shell.prefix(f"python={quote('python' if IN_CONDA else sys.executable)} scripts={quote(SCRIPTS)}; ")


def section(*names):
    return sections_json(CONFIG, *names)


def results_directory(wildcards):
    return RESULTS


def tokens_directory(wildcards):
    return f"{RESULTS}/tokens"


def target_files(wildcards):
    """What a change of re-describes the target. A missing file is left to the script, which explains it."""
    directory = Path(CONFIG.target.path)
    if directory.parent == Path("demo"):
        return [str(directory)]
    patterns = ("*.json", "*.jinja", "*.model", "*.safetensors", "*.py")
    return sorted(str(path) for pattern in patterns for path in directory.glob(pattern))


def source_files(wildcards):
    """What a change of tokenizes anew. A missing file is left to the script, which explains it."""
    files = [str(path) for source in CONFIG.data.sources for path in files_of(source)]
    template = CONFIG.tokenization.chat_template
    return [*files, template] if template and Path(template).exists() else files


def batches():
    checkpoints.tokenize_dataset.get()
    return sorted(PLAN.view().batches)


def extracted_batches(wildcards):
    return [f"{RESULTS}/extraction/batches/{batch}.json" for batch in batches()]


def validated_batches(wildcards):
    return [f"{RESULTS}/validation/{batch}.json" for batch in batches()]


def ledger_of_batch(wildcards):
    checkpoints.tokenize_dataset.get()
    made = PLAN.made_by(wildcards.batch)
    return ancient(made.ledger) if made.exists else made.ledger


def batch_fingerprint(wildcards):
    return PLAN.view().fingerprint(wildcards.batch)


def pass_number(wildcards):
    return wildcards.ledger.split("/")[0]


def stripe(wildcards):
    return wildcards.ledger.split("/")[1]


def pass_minutes(wildcards):
    """Walltime, where the profile does not say another."""
    return PLAN.pass_minutes(int(stripe(wildcards)))


def pass_memory_mb(wildcards):
    return PLAN.pass_memory_mb()


def extraction_id(wildcards):
    return PLAN.extraction_id()


def summarize(*options):
    """What is done, what failed and why, and what to run next: the last lines a user reads."""
    told = ["--results", RESULTS, "--extraction-id", PLAN.extraction_id(), "--part", "summary"]
    subprocess.run([sys.executable, f"{SCRIPTS}/show_status.py", *told, *options], check=False)
