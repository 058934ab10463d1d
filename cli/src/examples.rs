//! The examples in the help texts. A test parses each of them.

/// Examples by verb. A comment begins with three spaces and `#`.
pub(crate) const EXAMPLES: &[(&str, &[&str])] = &[
    (
        "push",
        &[
            "duly push -- tar -czf backup.tgz data   # a command, as soon as a worker is free",
            "duly push mail '{\"to\":\"ada\"}' --in 10m   # a job for the handler `mail`",
            "duly push report --at 'tomorrow 9:00' --queue slow --priority low",
            "duly push invoice '{\"id\":7}' --unique invoice-7 --wait   # once at a time; wait for its end",
            "cat mails.ndjson | duly push --bulk mail",
        ],
    ),
    (
        "work",
        &[
            "duly work   # commands of the queue default",
            "duly work --queue critical --queue default --concurrency 20   # critical jobs first",
            "duly work --exec ./handle --kind mail",
            "duly work --until-empty   # in a script: end when there is nothing left to do",
        ],
    ),
    (
        "jobs ls",
        &[
            "duly jobs ls state:dead since:1h   # what died in the last hour",
            "duly jobs ls kind:mail args.to:ada -o wide",
            "duly jobs ls --state ready --columns id,kind,due",
            "duly jobs ls state:dead kind:mail -o name --all-pages | xargs duly jobs retry",
        ],
    ),
    (
        "jobs get",
        &[
            "duly jobs get 019299f0-0000-7000-8000-000000000000",
            "duly jobs get 019299f0-0000-7000-8000-000000000000 -o json",
        ],
    ),
    (
        "jobs retry",
        &[
            "duly jobs retry 019299f0-0000-7000-8000-000000000000",
            "duly jobs retry state:dead error:timeout since:1d --dry-run",
        ],
    ),
    (
        "jobs edit",
        &[
            "duly jobs edit 019299f0-0000-7000-8000-000000000000 --args '{\"to\":\"ada\"}'",
            "duly jobs edit 019299f0-0000-7000-8000-000000000000 --priority high",
        ],
    ),
    (
        "jobs cancel",
        &["duly jobs cancel 019299f0-0000-7000-8000-000000000000", "duly jobs cancel queue:slow kind:report --yes"],
    ),
    ("jobs rm", &["duly jobs rm 019299f0-0000-7000-8000-000000000000", "duly jobs rm state:done until:7d --dry-run"]),
    ("jobs why", &["duly jobs why 019299f0-0000-7000-8000-000000000000"]),
    (
        "jobs watch",
        &[
            "duly jobs watch --queue mail   # all unfinished and new jobs, until Ctrl-C",
            "duly jobs watch --until-done   # until all that are unfinished now have ended",
            "duly jobs watch 019299f0-0000-7000-8000-000000000000 -o ndjson",
        ],
    ),
    ("jobs logs", &["duly jobs logs -f 019299f0-0000-7000-8000-000000000000   # follow until the job ends"]),
    ("logs", &["duly logs -f 019299f0-0000-7000-8000-000000000000   # follow until the job ends"]),
    ("jobs wait", &["duly jobs wait 019299f0-0000-7000-8000-000000000000 --timeout 5m"]),
    ("dead ls", &["duly dead ls", "duly dead ls --queue mail -o name"]),
    (
        "dead retry",
        &["duly dead retry 5f1c2d3e4a5b6c7d   # a group of `duly dead ls`", "duly dead retry --all --dry-run"],
    ),
    ("dead rm", &["duly dead rm 5f1c2d3e4a5b6c7d", "duly dead rm kind:mail until:30d --yes"]),
    ("queues ls", &["duly queues ls", "duly queues ls -o name"]),
    ("queues pause", &["duly queues pause mail"]),
    ("queues resume", &["duly queues resume mail"]),
    ("queues capacity", &["duly queues capacity mail --jobs 10000 --bytes 50MB", "duly queues capacity mail --none"]),
    ("queues clear", &["duly queues clear mail --dry-run"]),
    ("queues rm", &["duly queues rm mail"]),
    (
        "cron add",
        &[
            "duly cron add backup '0 3 * * *' -- ./backup   # at 3:00 UTC",
            "duly cron add report '0 9 * * mon' --tz Europe/Berlin --kind report --args '{\"week\":true}'",
            "duly cron add sync '*/5 * * * *' --overlap skip --kind sync",
        ],
    ),
    ("cron apply", &["duly cron apply -f cron.toml --dry-run", "duly cron apply -f cron.toml --yes"]),
    ("cron ls", &["duly cron ls", "duly cron ls --columns name,next"]),
    ("cron get", &["duly cron get backup"]),
    (
        "cron next",
        &["duly cron next backup", "duly cron next --pattern '30 2 * * *' --tz Europe/Berlin --from 2026-03-28"],
    ),
    ("cron pause", &["duly cron pause backup"]),
    ("cron resume", &["duly cron resume backup"]),
    ("cron trigger", &["duly cron trigger backup   # run it now"]),
    ("cron rm", &["duly cron rm backup"]),
    ("stats", &["duly stats", "duly stats --minutes 60 --queue mail", "duly stats --watch"]),
    ("nodes ls", &["duly nodes ls"]),
    ("nodes jobs", &["duly nodes jobs 7c1e9b0e   # the start or the end of its id"]),
    ("nodes quiet", &["duly nodes quiet 7c1e9b0e   # before a deployment", "duly nodes quiet --all --off"]),
    ("nodes stop", &["duly nodes stop 7c1e9b0e"]),
    (
        "lock",
        &[
            "duly lock deploy -- ./deploy   # one at a time, on any machine",
            "duly lock deploy --wait 10m -- ./deploy",
            "duly lock builds --slots 3 -- make",
        ],
    ),
    ("lock ls", &["duly lock ls"]),
    ("lock get", &["duly lock get deploy"]),
    ("lock break", &["duly lock break deploy", "duly lock break builds --slot 2 --yes"]),
    ("call", &["duly call duly.ping --all", "duly call cache.clear '{\"key\":\"a\"}' --node 7c1e9b0e"]),
    (
        "move",
        &[
            "duly move --from ./duly.db --to redis://localhost",
            "duly move --from ./duly.db --to ./next.db --queue mail",
        ],
    ),
    ("serve", &["duly serve", "duly serve --listen 0.0.0.0:7711 --public-url https://jobs.example.com"]),
    ("up", &["duly up   # the dashboard, the API and a worker in one process", "duly up --exec ./handle --queue mail"]),
    ("open", &["duly open", "duly --server https://jobs.example.com open"]),
    ("token create", &["duly token create deploy --role operator --expires 90d"]),
    ("token ls", &["duly token ls"]),
    ("token rm", &["duly token rm deploy"]),
    ("openapi", &["duly openapi | jq .paths"]),
    ("top", &["duly top", "duly --server https://jobs.example.com top"]),
    ("verify", &["duly verify", "duly verify --repair"]),
    ("backup", &["duly backup copy.db"]),
    ("sql", &["duly sql 'SELECT kind, count(*) FROM duly_job GROUP BY kind'"]),
    (
        "completions",
        &[
            "duly completions bash > ~/.local/share/bash-completion/completions/duly",
            "duly completions fish > ~/.config/fish/completions/duly.fish",
        ],
    ),
    ("man", &["duly man jobs ls | man -l -"]),
    ("doctor", &["duly doctor", "duly --store redis://localhost doctor --acl"]),
    ("demo", &["duly demo", "duly demo --seconds 60"]),
    ("version", &["duly version"]),
];
