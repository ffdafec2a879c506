# Validate the samples in the store, each by itself and by all of the run (docs/proofs.md).
# Needs: the ledger of a pass, the samples that it extracted, the target's final norm and lm_head.
# Makes: a ledger for each ledger of extraction, its only declared output; verdicts and tables lie beside it, undeclared.
#        <results>/validation/<batch>.json exists if and only if no sample of the batch is rejected. Nothing is deleted:
#        rejected keys go to validation/rejected/, and the next run extracts them again.
#
# As in extraction, a ledger that exists is sealed, and a batch without a verdict depends on the next one, of the pass
# that extracts the batch.


localrules:
    validate_batch,


rule validate_pass:
    input:
        extracted="<results>/extraction/passes/{extracted}.json",
        tokens=ancient("<results>/tokens/samples.parquet"),
        batches=ancient("<results>/tokens/batches.json"),
        target=ancient("<results>/target.json"),
    output:
        "<results>/validation/passes/{number}/{extracted}.json",
    log:
        "<logs>/validate_pass/{number}/{extracted}.log",
    wildcard_constraints:
        number=PLAN.unvalidated,
        extracted=r"\d\d\d+/(?:\d+|stored)",
    conda:
        "../envs/workflow.yaml"
    threads: 8
    params:
        config=section("extraction", "target"),
        results=results_directory,
    shell:
        'exec "$python" "$scripts/validate_pass.py" --config {params.config:q} --results {params.results:q}'
        " --extracted {wildcards.extracted} --threads {threads} --ledger {output:q} 2> {log:q}"


rule validate_batch:
    input:
        batch="<results>/extraction/batches/{batch}.json",
        ledger=validation_of_batch,
    output:
        "<results>/validation/{batch}.json",
    log:
        "<logs>/validate_batch/{batch}.log",
    wildcard_constraints:
        batch=r"\d{5}",
    conda:
        "../envs/workflow.yaml"
    params:
        results=results_directory,
    shell:
        'exec "$python" "$scripts/validate_batch.py" --results {params.results:q} --batch {wildcards.batch}'
        " --ledger {input.ledger:q} --output {output:q} 2> {log:q}"


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
