# Conversations become token ids with loss masks, in batches. A checkpoint: how many batches there are depends on the data.
# Needs: the configured sources, <results>/target.json (the target's tokenizer and chat template).
# Makes: <results>/tokens/: samples, batches, the fate of every input row, token frequencies, a view for people.


checkpoint tokenize_dataset:
    input:
        source_files,
        target="<results>/target.json",
    output:
        samples="<results>/tokens/samples.parquet",
        batches="<results>/tokens/batches.json",
        ledger="<results>/tokens/ledger.parquet",
        frequencies="<results>/tokens/token_frequencies.npy",
        view=report("<results>/tokens/samples.html", category="Samples"),
    log:
        "<logs>/tokenize_dataset.log",
    conda:
        "../envs/workflow.yaml"
    threads: 8
    params:
        config=section("target", "data", "tokenization"),
        directory=tokens_directory,
    shell:
        'exec "$python" "$scripts/tokenize_dataset.py" --config {params.config:q} --target {input.target:q}'
        " --processes {threads} --output-dir {params.directory:q} 2> {log:q}"
