# Conversations become token ids with loss masks, in batches. A checkpoint: how many batches there are depends on the data.
# Needs: the configured sources, <results>/target.json (the target's tokenizer and chat template).
# Makes: <results>/tokens/: samples, batches, what became of every input row, token frequencies; batches.json seals the others.
#        <results>/tokens/samples.html, a page for people, on which nothing else depends.


localrules:
    show_samples,


checkpoint tokenize_dataset:
    input:
        source_files,
        answers,
        target="<results>/target.json",
    output:
        samples="<results>/tokens/samples.parquet",
        batches="<results>/tokens/batches.json",
        ledger="<results>/tokens/ledger.parquet",
        frequencies="<results>/tokens/token_frequencies.npy",
    log:
        "<logs>/tokenize_dataset.log",
    conda:
        "../envs/workflow.yaml"
    threads: 8
    params:
        config=section(
            "target", "data", "tokenization", *(["generation"] if CONFIG.generation.is_wanted else [])
        ),
        generation=generation_options,
        directory=tokens_directory,
        others=other_source_files,
    shell:
        'exec "$python" "$scripts/tokenize_dataset.py" --config {params.config:q} --target {input.target:q}'
        " --processes {threads} --output-dir {params.directory:q} {params.generation} 2> {log:q}"


rule show_samples:
    input:
        samples="<results>/tokens/samples.parquet",
        target="<results>/target.json",
    output:
        report("<results>/tokens/samples.html", category="Samples"),
    log:
        "<logs>/show_samples.log",
    conda:
        "../envs/workflow.yaml"
    params:
        config=section("target", "tokenization"),
    shell:
        'exec "$python" "$scripts/show_samples.py" --config {params.config:q} --target {input.target:q}'
        " --samples {input.samples:q} --output {output:q} 2> {log:q}"
