# Hidden states. A pass is one job (in `extraction.jobs` stripes): the model is loaded once for every unfinished batch.
# Needs: <results>/tokens, <results>/target.json, <results>/compatibility/report.json.
# Makes: the ledger of the pass, its only declared output, also when batches fail; samples go to the store, undeclared.
#        <results>/extraction/batches/<batch>.json exists if and only if the batch is complete.
#
# A ledger that exists is sealed: the pattern of `ledger` excludes it. A finished batch depends on the ledger of the pass
# that made it (as ancient), an unfinished one on the next, which does not exist yet. So a run plans at most one new pass.
# A batch whose samples are all in the store already (another run, other batch sizes) depends on `find_stored_batches`.


localrules:
    find_stored_batches,
    extract_batch,


rule find_stored_batches:
    input:
        ancient("<results>/tokens/samples.parquet"),
        ancient("<results>/tokens/batches.json"),
        ancient("<results>/target.json"),
    output:
        "<results>/extraction/passes/{number}/stored.json",
    log:
        "<logs>/find_stored_batches/{number}.log",
    wildcard_constraints:
        number=PLAN.unsealed_number,
    conda:
        "../envs/workflow.yaml"
    params:
        config=section("extraction"),
        results=results_directory,
    shell:
        'exec "$python" "$scripts/find_stored_batches.py" --config {params.config:q} --results {params.results:q}'
        " --pass-number {wildcards.number} --ledger {output:q} 2> {log:q}"


rule extract_pass:
    input:
        ancient("<results>/tokens/samples.parquet"),
        ancient("<results>/tokens/batches.json"),
        ancient("<results>/target.json"),
        "<results>/compatibility/report.json",  # never ancient: Snakemake 9.27 then drops the pass if the report is made again in the same run
    output:
        "<results>/extraction/passes/{ledger}.json",
    log:
        "<logs>/extract_pass/{ledger}.log",
        engine="<logs>/extract_pass/{ledger}.engine.log",
    wildcard_constraints:
        ledger=PLAN.unsealed,
    conda:
        "../envs/workflow.yaml"
    threads: 8
    resources:
        gpu=CONFIG.extraction.tensor_parallel,
        runtime=pass_minutes,
        mem_mb=pass_memory_mb,
    params:
        config=section("target", "tokenization", "extraction", "compatibility", "validation"),
        results=results_directory,
        number=pass_number,
        stripe=stripe,
    shell:
        'exec "$python" "$scripts/extract_pass.py" --config {params.config:q} --results {params.results:q}'
        " --pass-number {params.number} --stripe {params.stripe} --engine-log {log.engine:q}"
        " --ledger {output:q} 2> {log[0]:q}"


rule extract_batch:
    input:
        ledger=ledger_of_batch,
    output:
        "<results>/extraction/batches/{batch}.json",
    log:
        "<logs>/extract_batch/{batch}.log",
    wildcard_constraints:
        batch=r"\d{5}",
    conda:
        "../envs/workflow.yaml"
    params:
        fingerprint=batch_fingerprint,
    shell:
        'exec "$python" "$scripts/extract_batch.py" --batch {wildcards.batch}'
        " --fingerprint={params.fingerprint:q} --ledger {input.ledger:q} --output {output:q} 2> {log:q}"
