//! The lines that are typed: of each command a success, if it ends by itself, and
//! failures.

pub struct Case {
    pub command: &'static str,
    pub lines: &'static [&'static str],
}

const fn case(command: &'static str, lines: &'static [&'static str]) -> Case {
    Case { command, lines }
}

pub const CASES: &[Case] = &[
    case(
        "get",
        &[
            "get",
            "get -A -o wide",
            "@none get",
            "@broken get",
            "@down get",
            "@guest get",
            "@stranger get",
            "get --context nowhere",
            "get -n nowhere",
        ],
    ),
    case(
        "status",
        &[
            "status web",
            "status api",
            "status web -o wide",
            "status wbe",
            "status other",
            "@down status web",
            "@guest status web",
        ],
    ),
    case(
        "history",
        &[
            "history web",
            "history web -o wide",
            "history api",
            "history wbe",
            "@none history web",
            "@guest history web",
        ],
    ),
    case("events", &["events web", "events api", "events wbe", "@down events web", "@guest events web"]),
    case("logs", &["logs web", "logs api", "logs wbe", "@none logs web", "@guest logs web"]),
    case("wait", &["wait web --timeout 2s", "wait api", "wait wbe", "@down wait web", "@guest wait web"]),
    case(
        "approve",
        &[
            "approve web --wait 0s",
            "approve api",
            "approve web --gate other",
            "approve wbe",
            "@guest approve web",
            "@down approve web",
        ],
    ),
    case("reject", &["reject web --wait 0s --reason slow", "reject api", "reject wbe", "@guest reject web"]),
    case("promote", &["promote web --wait 0s", "promote wbe", "@guest promote web", "@none promote web"]),
    case("abort", &["abort web --wait 0s", "abort wbe", "@guest abort web", "@none abort web"]),
    case("pause", &["pause web --wait 0s", "pause wbe", "@guest pause web", "@none pause web"]),
    case("resume", &["resume web --wait 0s", "resume wbe", "@guest resume web", "@none resume web"]),
    case("retry", &["retry web --wait 0s", "retry wbe", "@guest retry web", "@none retry web"]),
    case(
        "rollback",
        &[
            "rollback web --wait 0s",
            "undo web --wait 0s",
            "rollback wbe",
            "@guest rollback web",
            "@none rollback web",
        ],
    ),
    case(
        "inventory",
        &[
            "inventory workloads",
            "@none inventory",
            "@down inventory",
            "inventory why nothing",
            "inventory --context nowhere",
        ],
    ),
    case("mesh", &["mesh list", "@none mesh list", "@guest mesh list", "mesh remove nothing"]),
    case("lint", &["lint good.yaml", "lint bad.yaml", "lint nowhere.yaml", "lint --explain SER999", "lint"]),
    case(
        "migrate",
        &["migrate flagger.yaml", "migrate nowhere.yaml", "migrate", "migrate flagger.yaml --dir good.yaml"],
    ),
    case(
        "xds",
        &[
            "xds status --server http://127.0.0.1:1",
            "xds status --server http://example.com",
            "xds status --server nothing",
            "xds",
        ],
    ),
    case("crds", &["crds --dir made", "crds --dir good.yaml", "crds --directory x", "crds extra"]),
    case("completion", &["completion fish", "completion", "completion csh", "completion bash extra"]),
    case("man", &["man made", "man", "man good.yaml", "man made extra"]),
    case(
        "local",
        &[
            "local --listen 0.0.0.0:0",
            "local --listen nothing",
            "local --rps 5",
            "local --kubeconfig nowhere/kubeconfig",
        ],
    ),
    case(
        "demo",
        &[
            "demo --serve 0.0.0.0:0",
            "demo -f nowhere.yaml",
            "demo -f flagger.yaml",
            "demo --app-image shop:v1",
        ],
    ),
    case(
        "simulate",
        &[
            "simulate -f good.yaml --releases 10 --rps 500",
            "simulate -f nowhere.yaml",
            "simulate -f good.yaml --fault cats=2",
            "simulate",
        ],
    ),
    case("dashboard", &["@none dashboard", "dashboard --listen nothing", "dashboard --listen 0.0.0.0:0"]),
    case(
        "version",
        &["version", "@down version --check-crds", "@none version --check-crds", "version extra"],
    ),
    case(
        "standalone",
        &[
            "standalone nowhere",
            "standalone . --kube-listen 0.0.0.0:0",
            "standalone . --listen nothing",
            "standalone",
        ],
    ),
    case("run", &["@none run", "@broken run", "run --provider itsio", "run --listen nothing"]),
    case("help", &["", "statsu web", "get --outptu json", "help lint"]),
];
