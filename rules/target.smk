# The target model.
# Needs: target.path of the configuration.
# Makes: <results>/target.json, what the other stages must know of it; demo/<name>, a target built on the spot.


localrules:
    build_demo_target,
    describe_target,


rule build_demo_target:
    input:
        conversations=DEMO_CONVERSATIONS,
    output:
        directory("demo/{target}"),
    log:
        "logs/build_demo_target/{target}.log",
    wildcard_constraints:
        target="tiny-llama|tiny-kimi",
    conda:
        "../envs/workflow.yaml"
    shell:
        'exec "$python" "$scripts/build_demo_target.py" --target {wildcards.target}'
        " --conversations {input.conversations:q} --output {output:q} 2> {log:q}"


checkpoint describe_target:
    input:
        target_files,
    output:
        "<results>/target.json",
    log:
        "<logs>/describe_target.log",
    conda:
        "../envs/workflow.yaml"
    params:
        target=target_path,
        state=target_state,
    shell:
        'exec "$python" "$scripts/describe_target.py" --target={params.target:q} --output {output:q} 2> {log:q}'
