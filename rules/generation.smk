# The target's own answers, with `generation.responses: target`. A pass is one job, as in rules/extraction.smk: what is said there
# of ledgers, sealing and gates holds here, too.
# Needs: the configured sources, <results>/target.json.
# Makes: <results>/prompts/: what the target is asked, in batches; the ledger of the pass; answers go to generation.store, undeclared.
#        <results>/generation/batches/<batch>.json exists if and only if every conversation of the batch is answered.
#        <results>/generation/answers.json, once all of them exist: then tokenize_dataset makes samples of the answers.


localrules:
    check_generation,
    generate_batch,
    collect_answers,


checkpoint plan_prompts:
    input:
        source_files,
        target="<results>/target.json",
    output:
        prompts="<results>/prompts/prompts.parquet",
        batches="<results>/prompts/batches.json",
        ledger="<results>/prompts/ledger.parquet",
    log:
        "<logs>/plan_prompts.log",
    conda:
        "../envs/workflow.yaml"
    threads: 8
    params:
        config=section("target", "data", "tokenization", "generation"),
        directory=prompts_directory,
        others=other_source_files,
    shell:
        'exec "$python" "$scripts/plan_prompts.py" --config {params.config:q} --target {input.target:q}'
        " --processes {threads} --output-dir {params.directory:q} 2> {log:q}"


# The check of rules/compatibility.smk, before the first load of the target: there are no tokens yet, so the prompts stand for them.
rule check_generation:
    input:
        target="<results>/target.json",
        batches="<results>/prompts/batches.json",
    output:
        json="<results>/generation/report.json",
        html=report("<results>/generation/report.html", category="Compatibility"),
    log:
        "<logs>/check_generation.log",
    conda:
        "../envs/workflow.yaml"
    params:
        config=section("target", "tokenization", "extraction", "compatibility", "training_set"),
    shell:
        'exec "$python" "$scripts/check_compatibility.py" installed --config {params.config:q}'
        " --target {input.target:q} --batches {input.batches:q} --output {output.json:q} 2> {log:q}"


rule generate_pass:
    input:
        ancient("<results>/prompts/prompts.parquet"),
        ancient("<results>/prompts/batches.json"),
        ancient("<results>/target.json"),
        "<results>/generation/report.json",  # never ancient: see extract_pass
    output:
        "<results>/generation/passes/{ledger}.json",
    log:
        "<logs>/generate_pass/{ledger}.log",
        engine="<logs>/generate_pass/{ledger}.engine.log",
    wildcard_constraints:
        ledger=GENERATION_PLAN.unsealed,
    conda:
        "../envs/workflow.yaml"
    threads: 8
    resources:
        gpu=CONFIG.extraction.tensor_parallel,
        runtime=generation_minutes,
        mem_mb=generation_memory_mb,
    params:
        config=section("target", "tokenization", "extraction", "generation", "compatibility"),
        results=results_directory,
        number=pass_number,
        stripe=stripe,
    shell:
        'exec "$python" "$scripts/generate_pass.py" --config {params.config:q} --results {params.results:q}'
        " --pass-number {params.number} --stripe {params.stripe} --engine-log {log.engine:q}"
        " --ledger {output:q} 2> {log[0]:q}"


rule generate_batch:
    input:
        ledger=generation_ledger_of_batch,
    output:
        "<results>/generation/batches/{batch}.json",
    log:
        "<logs>/generate_batch/{batch}.log",
    wildcard_constraints:
        batch=r"\d{5}",
    conda:
        "../envs/workflow.yaml"
    params:
        fingerprint=generation_fingerprint,
    shell:
        'exec "$python" "$scripts/generate_batch.py" --batch {wildcards.batch}'
        " --fingerprint={params.fingerprint:q} --ledger {input.ledger:q} --output {output:q} 2> {log:q}"


rule collect_answers:
    input:
        prompts="<results>/prompts/batches.json",
        gates=answered_batches,
    output:
        "<results>/generation/answers.json",
    log:
        "<logs>/collect_answers.log",
    conda:
        "../envs/workflow.yaml"
    shell:
        'exec "$python" "$scripts/collect_answers.py" --gates {input.gates:q} --output {output:q} 2> {log:q}'
