# Everything that can be known before the target model is loaded. Its failure means that no GPU job is submitted.
# Needs: <results>/target.json, <results>/tokens/batches.json, the installed vLLM.
# Makes: <results>/compatibility/report.json and report.html, only if nothing fails (else report.failed.json and .html beside them).


localrules:
    check_compatibility,


rule check_compatibility:
    input:
        target="<results>/target.json",
        batches="<results>/tokens/batches.json",
    output:
        json="<results>/compatibility/report.json",
        html=report("<results>/compatibility/report.html", category="Compatibility"),
    log:
        "<logs>/check_compatibility.log",
    conda:
        "../envs/workflow.yaml"
    params:
        config=section("target", "tokenization", "extraction", "compatibility", "training_set"),
    shell:
        'exec "$python" "$scripts/check_compatibility.py" installed --config {params.config:q}'
        " --target {input.target:q} --batches {input.batches:q} --output {output.json:q} 2> {log:q}"
