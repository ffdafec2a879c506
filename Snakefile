# From conversations and a target model to a proven EAGLE-3 training set.
#
#   snakemake --cores all extract     hidden states of every batch
#   snakemake --cores all             ... validated and assembled as a training set
#   snakemake --cores all verify      verify every byte of the training set
#   snakemake --cores 1 status        what is done, failed and pending (during a run: python scripts/show_status.py)
#
# Each stage is one file in rules/, each rule one script of the same name in scripts/.

from snakemake.utils import min_version

min_version("9.27")


# Use the demo's configuration only if no other is given: its values must not fill gaps in a real one.
if not workflow.config_settings.configfiles:

    configfile: f"{workflow.current_basedir}/config/config.yaml"


include: "rules/common.smk"


pathvars:
    results=RESULTS,
    logs=LOGS,


include: "rules/target.smk"
include: "rules/generation.smk"
include: "rules/tokenization.smk"
include: "rules/compatibility.smk"
include: "rules/extraction.smk"
include: "rules/validation.smk"
include: "rules/assembly.smk"


localrules:
    all,
    extract,
    validate,
    status,


# Each target also requests the files of all earlier stages, so that a lost one is made again, or the run fails.
rule all:
    default_target: True
    input:
        files_before_extraction,
        extracted_batches,
        validated_batches,
        "<results>/reference.json",
        training_set,


rule extract:
    input:
        files_before_extraction,
        extracted_batches,


rule validate:
    input:
        files_before_extraction,
        extracted_batches,
        validated_batches,


rule status:
    log:
        "<logs>/status.log",
    conda:
        "envs/workflow.yaml"
    params:
        results=results_directory,
        extraction_id=extraction_id,
        generation_id=generation_id,
    shell:  # with "=": an id that is not known is empty, and Snakemake writes nothing for it
        'exec "$python" "$scripts/show_status.py" --results {params.results:q} --extraction-id={params.extraction_id:q}'
        " --generation-id={params.generation_id:q} --part table 2> {log:q}"


onstart:
    for watcher in WATCHERS:
        watcher.start()


onsuccess:
    summarize(*next_command())


onerror:
    summarize("--failed")
