# Validate the samples in the store: structure, numbers, checksum, greedy token.
# Needs: a complete batch, its samples in the store, the target's final norm and lm_head.
# Makes: <results>/validation/<batch>.json. It deletes nothing: rejected keys go to validation/rejected/, and the next run extracts them again.


rule validate_batch:
    input:
        batch="<results>/extraction/batches/{batch}.json",
        tokens=ancient("<results>/tokens/samples.parquet"),
        target=ancient("<results>/target.json"),
    output:
        "<results>/validation/{batch}.json",
    log:
        "<logs>/validate_batch/{batch}.log",
    wildcard_constraints:
        batch=r"\d{5}",
    conda:
        "../envs/workflow.yaml"
    params:
        config=section("extraction", "target"),
        results=results_directory,
    shell:
        'exec "$python" "$scripts/validate_batch.py" --config {params.config:q} --results {params.results:q}'
        " --batch {wildcards.batch} --output {output:q} 2> {log:q}"
