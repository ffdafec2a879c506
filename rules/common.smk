# Helpers of the rules; no rules here. The logic is in scripts/eagle3_data, this only ties it to Snakemake.

import os
import subprocess
import sys
from copy import deepcopy
from functools import cache
from pathlib import Path
from shlex import join, quote

from snakemake.exceptions import WorkflowError
from snakemake.logging import logger

# `workflow.basedir` would be the outer workflow's where this one is used as a module.
PROJECT = str(Path(str(workflow.current_basedir)).parent)
SCRIPTS = f"{PROJECT}/scripts"
sys.path.insert(0, SCRIPTS)

try:
    from eagle3_data.assembly.verify import REMEDY, look
    from eagle3_data.checkpoints import require
    from eagle3_data.config import load_config, read_config_file, write_sections, write_whole
    from eagle3_data.errors import Eagle3DataError, InputError
    from eagle3_data.generation.planning import GenerationPlan
    from eagle3_data.hashing import hash_json
    from eagle3_data.target.locate import described_files, locate_target, state_of
    from eagle3_data.system.modes import PRIVATE_UMASK
    from eagle3_data.passes.planning import Plan
    from eagle3_data.passes.watching import PassWatcher
    from eagle3_data.system.places import check_directory
    from eagle3_data.records import remove
    from eagle3_data.records.run_paths import RunPaths
    from eagle3_data.tokenization.reading.sources import files_of
except ImportError as error:
    raise WorkflowError(
        f"the environment of this workflow is incomplete ({error!r}); run `make environment` and activate .venv"
    )

DEMO_CONVERSATIONS = f"{PROJECT}/config/demo/conversations.jsonl"


def with_demo_data(values):
    """The demo's conversations lie beside the Snakefile, wherever Snakemake is called."""
    values = deepcopy(dict(values))
    sources = values.get("data", {}).get("sources") if isinstance(values.get("data"), dict) else None
    for source in sources if isinstance(sources, list) else ():
        if source.get("path") == "config/demo/conversations.jsonl" and not os.path.exists(source["path"]):
            source["path"] = DEMO_CONVERSATIONS
    return values


try:
    for file in workflow.config_settings.configfiles or [f"{PROJECT}/config/config.yaml"]:
        read_config_file(file)  # for what Snakemake's own reader does not mind, such as a key given twice
    CONFIG = load_config(with_demo_data(config))
    # Inherited by every job, on other machines, too: those read this file again.
    if CONFIG.private:
        os.umask(PRIVATE_UMASK)
    PATHS = RunPaths.of_run(CONFIG.run)
    for place in (PATHS.results, PATHS.logs):
        check_directory(place, writable=not workflow.dryrun)
    if workflow.is_main_process and not workflow.dryrun:
        write_whole(CONFIG, PATHS.whole_config)
    PLAN = Plan(CONFIG, PATHS)
    GENERATION_PLAN = GenerationPlan(CONFIG, PATHS)
    PLAN.check_store()
except Eagle3DataError as error:
    raise WorkflowError(str(error))

IS_DEMO_TARGET = CONFIG.target.path in ("demo/tiny-llama", "demo/tiny-kimi")
WATCHERS = [PassWatcher(PATHS.extraction), PassWatcher(PATHS.generation)]
RESULTS, LOGS = str(PATHS.results), str(PATHS.logs)
# The command that continues this run: for records written by jobs, which are other processes, perhaps on other machines.
os.environ.setdefault(
    "EAGLE3_DATA_COMMAND",
    join(["snakemake", *("extract" if argument == "status" else argument for argument in sys.argv[1:])]),
)
# Under `--sdm conda` a rule's own environment brings its python; otherwise it is the one that runs Snakemake.
DEPLOYMENT = [str(method).lower() for method in workflow.deployment_settings.deployment_method]
IN_CONDA = any(method.endswith("conda") for method in DEPLOYMENT)
if any(method.endswith(("apptainer", "singularity")) for method in DEPLOYMENT):
    raise WorkflowError(
        "this workflow names no container images, so `--sdm apptainer` would change nothing; run Snakemake itself in"
        " a container that holds .venv, or use `--sdm conda` (docs/snakemake.md)"
    )
shell.prefix(f"python={quote('python' if IN_CONDA else sys.executable)} scripts={quote(SCRIPTS)}; ")


def section(*names):
    """A file with these sections, named after their content: where they change, the rule runs again."""
    return str(write_sections(CONFIG, PATHS.configs, *names))


def results_directory(wildcards):
    return RESULTS


def assembly_threads(wildcards):
    """Links take no time; other formats are written by as many processes as there are cores, up to this."""
    return 1 if set(CONFIG.training_set.formats) <= {"speculators"} else 16


def tokens_directory(wildcards):
    return str(PATHS.tokens)


def prompts_directory(wildcards):
    return str(PATHS.prompts.parent)


def target_files(wildcards):
    """The inputs of the target's description. A file that is missing or that may not be read is left to the
    script, which explains it."""
    if IS_DEMO_TARGET:
        return [CONFIG.target.path]
    try:
        paths = described_files(locate_target(CONFIG.target.path))
        return nameable(str(path) for path in paths if os.access(path, os.R_OK))
    except InputError:
        return []


def target_path(wildcards):
    return CONFIG.target.path


def target_state(wildcards):
    """The target's real path and the identity of its files: times alone do not show that a link leads
    elsewhere, or of files that were replaced by older ones."""
    try:
        return "demo" if IS_DEMO_TARGET else state_of(locate_target(CONFIG.target.path))
    except InputError:
        return "absent"


def all_source_files():
    files = [str(path) for source in CONFIG.data.sources for path in files_of(source)]
    template = CONFIG.tokenization.chat_template
    return [*files, template] if template and Path(template).exists() else files


def source_files(wildcards):
    """The inputs of tokenization. A missing file is left to the script, which explains it."""
    return nameable(all_source_files())


def other_source_files(wildcards):
    """Changes with those sources that cannot be named as inputs; empty where there are none."""
    others = sorted(set(all_source_files()) - set(source_files(wildcards)))
    return (
        hash_json([(path, os.stat(path).st_size, os.stat(path).st_mtime_ns) for path in others])
        if others
        else ""
    )


def nameable(paths):
    """Without those in whose name Snakemake would take a part in braces for a wildcard."""
    return [path for path in paths if "{" not in path and "}" not in path]


@cache
def remove_damaged_records():
    """Once, before anything is planned: Snakemake then makes them again, as what was lost."""
    plans = (PLAN, GENERATION_PLAN) if workflow.is_main_process else ()
    damaged = [path for plan in plans for path in plan.damaged_records()]
    if damaged and workflow.dryrun:
        raise WorkflowError(
            f"damaged: {', '.join(map(str, damaged))}; a run without --dry-run makes them again"
        )
    for path in damaged:
        logger.warning(f"{path} is damaged; it is made again")
        remove(path)


def planned():
    """The plan, once what it is made from is there."""
    remove_damaged_records()
    require(checkpoints.describe_target)
    require(checkpoints.tokenize_dataset)
    return PLAN


def planned_prompts():
    """The same of the generation, where the target answers itself."""
    remove_damaged_records()
    require(checkpoints.describe_target)
    require(checkpoints.plan_prompts)
    return GENERATION_PLAN


def answered_batches(wildcards):
    return [str(PATHS.generation_gate(batch)) for batch in planned_prompts().batches()]


def answers(wildcards):
    """What tokenization waits for where the target answers itself."""
    return [str(PATHS.answers)] if CONFIG.generation.is_wanted else []


def generation_options(wildcards):
    """Tells tokenization whose answers to train."""
    name = GENERATION_PLAN.generation_id()
    return f"--generation-id {name} --answers {quote(str(PATHS.answers))}" if name else ""


def files_before_extraction(wildcards):
    return [str(path) for path in PATHS.before_extraction]


def extracted_batches(wildcards):
    return [str(PATHS.gate(batch)) for batch in planned().batches()]


def validated_batches(wildcards):
    return [str(PATHS.verdict(batch)) for batch in planned().batches()]


def training_set(wildcards):
    """The training set. It must be unchanged since assembly, since a trainer does not check."""
    if faults := look(PATHS.training_set) if PATHS.training_set.exists() else []:
        raise WorkflowError(
            f"{RESULTS}/training_set is not as assembled: {faults[0]}; {REMEDY}."
            " `snakemake --cores all verify` reads every byte and says what is wrong"
        )
    return f"{RESULTS}/training_set"


def ledger_of_batch(wildcards):
    made = planned().made_by(wildcards.batch)
    return ancient(made.ledger) if made.exists else made.ledger


def generation_ledger_of_batch(wildcards):
    made = planned_prompts().made_by(wildcards.batch)
    return ancient(made.ledger) if made.exists else made.ledger


def generation_fingerprint(wildcards):
    return GENERATION_PLAN.fingerprint(wildcards.batch)


def validation_of_batch(wildcards):
    made = planned().validated_by(wildcards.batch)
    return ancient(made.ledger) if made.exists else made.ledger


def batch_fingerprint(wildcards):
    return planned().fingerprint(wildcards.batch)


def pass_number(wildcards):
    return wildcards.ledger.split("/")[0]


def stripe(wildcards):
    return wildcards.ledger.split("/")[1]


def pass_minutes(wildcards):
    """Walltime, unless the profile sets another."""
    return PLAN.pass_minutes(int(stripe(wildcards)))


def generation_minutes(wildcards):
    return GENERATION_PLAN.pass_minutes(int(stripe(wildcards)))


def generation_memory_mb(wildcards):
    return GENERATION_PLAN.pass_memory_mb()


def pass_memory_mb(wildcards):
    return PLAN.pass_memory_mb()


def reference_minutes(wildcards):
    return PLAN.reference_minutes()


def reference_memory_mb(wildcards):
    return PLAN.reference_memory_mb()


def extraction_id(wildcards):
    return PLAN.extraction_id()


def generation_id(wildcards):
    return GENERATION_PLAN.generation_id()


def next_command():
    """Options that name the command that was given, to ask for what comes next; none after `status`."""
    asked = set(map(str, workflow.dag_settings.targets))
    arguments = [
        argument
        for before, argument in zip(sys.argv, sys.argv[1:])
        if argument not in asked
        or before.startswith("-")  # perhaps an option's value, as in `-R extract_pass`
    ]
    return () if "status" in asked else ("--command", join(["snakemake", "TARGET", *arguments]))


def summarize(*options):
    """Print what is done, what failed and why, and what to run next, as the last lines of a run."""
    for watcher in WATCHERS:
        watcher.stop()
    told = ["--results", RESULTS, "--extraction-id", PLAN.extraction_id(), "--part", "summary"]
    told += ["--generation-id", GENERATION_PLAN.generation_id()]
    subprocess.run([sys.executable, f"{SCRIPTS}/show_status.py", *told, *options], check=False)
