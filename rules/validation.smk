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


# Stored samples beside transformers' own forward pass, from the target's real weights, layer by layer. A failure names slot and layer.
# Needs: every batch extracted. Makes: <results>/reference.json, also where nothing could be proven (it says why); what passed is kept in the store.
rule prove_target:
    input:
        extracted_batches,
        samples=ancient("<results>/tokens/samples.parquet"),
        target=ancient("<results>/target.json"),
    output:
        "<results>/reference.json",
    log:
        "<logs>/prove_target.log",
    conda:
        "../envs/workflow.yaml"
    threads: 8
    resources:
        runtime=reference_minutes,
        mem_mb=reference_memory_mb,
    params:
        config=section("extraction", "target", "validation"),
        results=results_directory,
    shell:
        'exec "$python" "$scripts/prove_target.py" --config {params.config:q} --results {params.results:q}'
        " --output {output:q} 2> {log:q}"
