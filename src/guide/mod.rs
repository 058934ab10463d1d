//! The guides: how to start, how to solve common tasks, and one page per subject.
//!
//! These pages are the same as in the folder `docs/` of the repository. Their programs run as tests.
//!
//! Begin with [getting started](getting_started) and [concepts]. Complete programs for common situations:
//! [send mail from a web app](send_mail), [make a nightly report](nightly_report), [process uploads](process_uploads),
//! [run shell commands from cron](shell_commands), [run jobs in Python](python_worker).

// Each page is preceded by `links.md`, whose link definitions win over those at the end of the page: links between pages
// lead to modules here, and to the repository for everything else.
macro_rules! pages {
    ($($(#[$attribute:meta])* $name:ident: $path:literal,)+) => {$(
        $(#[$attribute])*
        #[doc = include_str!("links.md")]
        #[doc = include_str!(concat!("../../docs/", $path))]
        pub mod $name {}
    )+};
}

pages! {
    getting_started: "start/getting-started.md",
    concepts: "concepts.md",
    // Its program needs axum: duly-http tests it.
    #[cfg(not(doctest))]
    send_mail: "how-to/send-mail.md",
    nightly_report: "how-to/nightly-report.md",
    process_uploads: "how-to/process-uploads.md",
    shell_commands: "how-to/shell-commands.md",
    python_worker: "how-to/python-worker.md",
    jobs: "guide/jobs.md",
    workers: "guide/workers.md",
    cron: "guide/cron.md",
    fences: "guide/fences.md",
    locks: "guide/locks.md",
    calls: "guide/calls.md",
    testing: "guide/testing.md",
    running: "guide/running.md",
    #[cfg(not(doctest))]
    dashboard: "guide/dashboard.md",
    managing_jobs: "guide/managing-jobs.md",
    debugging: "guide/debugging.md",
    durability: "guide/durability.md",
    redis: "guide/redis.md",
    deploying: "guide/deploying.md",
    moving_stores: "guide/moving-stores.md",
    #[cfg(not(doctest))]
    http: "guide/http.md",
    securing: "guide/securing.md",
    workers_in_any_language: "guide/workers-in-any-language.md",
    #[cfg(any(feature = "compat", not(doctest)))]
    interop: "guide/interop.md",
    #[cfg(any(feature = "compat", not(doctest)))]
    sidekiq: "migrating/sidekiq.md",
    #[cfg(any(feature = "compat", not(doctest)))]
    actionhero: "migrating/actionhero.md",
}
