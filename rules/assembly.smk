# The training set: speculators' format, whose states are links into the store, and below it the other formats of training_set.formats.
# Needs: every batch validated, <results>/tokens, <results>/compatibility/report.json (its accepted findings go into the provenance).
# Makes: <results>/training_set/. `verify` makes nothing: it fails if the set has changed since.


rule assemble_training_set:
    input:
        validated_batches,
        reference="<results>/reference.json",
        samples="<results>/tokens/samples.parquet",
        target="<results>/target.json",
        report="<results>/compatibility/report.json",
    output:
        directory("<results>/training_set"),
    log:
        "<logs>/assemble_training_set.log",
    conda:
        "../envs/workflow.yaml"
    threads: assembly_threads
    params:
        config=section("data", "extraction", "target", "tokenization", "training_set"),
        results=results_directory,
    shell:
        'exec "$python" "$scripts/assemble_training_set.py" --config {params.config:q} --processes {threads}'
        " --results {params.results:q} --output {output:q} 2> {log:q}"


rule verify:
    input:
        "<results>/training_set",
    log:
        "<logs>/verify_training_set.log",
    conda:
        "../envs/workflow.yaml"
    threads: 8
    params:
        results=results_directory,
    shell:
        'exec "$python" "$scripts/verify_training_set.py" {input:q} --results {params.results:q}'
        " --threads {threads} 2> {log:q}"
