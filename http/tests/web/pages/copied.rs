//! The Rust that the dashboard shows for its forms, as the browser tests fill them in. They compare it with this file.

use duly::{Filter, JobId, Push};

const ID: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

#[tokio::test]
async fn copied_rust_compiles_and_works() {
    let duly = duly::Duly::open(":memory:").await.expect("opens");
    duly.push(Push::new("copied.job", r#"{"text":"it's"}"#).queue("copied").id(ID.parse().expect("an id")))
        .await
        .expect("pushed");
    push_and_save(&duly).await.expect("works");
    let mail = duly.jobs().list(Filter::all().queue("mail").tag("night").with_details()).await.expect("listed");
    let nasty = r#"it's "$HOME" `id` !! \ ; rm -rf * #"#;
    assert_eq!(mail.jobs[0].job.unique.as_ref().expect("a key").key(), nasty);
    change_jobs(&duly).await.expect("works");
    assert!(duly.jobs().get(ID.parse::<JobId>().expect("an id")).await.expect("asked").is_none());
    change_queue(&duly).await.expect("works");
}

#[rustfmt::skip]
async fn push_and_save(duly: &duly::Duly) -> duly::Result<()> {
    duly.push(duly::Push::new("mail.welcome", r#"{"text":"it's \"$HOME\" `id` !! \\ ; rm -rf * #",
"big":123456789012345678901234567890}"#)
        .queue("mail")
        .priority(duly::Priority::High)
        .max_attempts(25)
        .tags(["eu", "night"])
        .after(std::time::Duration::from_secs(9000))
        .unique(r#"it's "$HOME" `id` !! \ ; rm -rf * #"#)
    ).await?;
    let job = duly::Push::new("mail.welcome", r#"{"text":"it's"}"#).queue("mail").priority(duly::Priority::Low).max_attempts(7).timeout(std::time::Duration::from_secs(90)).keep(std::time::Duration::from_secs(172800)).tags(["eu"]);
    let rule = duly::cron::CronRule::new("copied", "*/5 3 * * MON", job)?
        .tz("Europe/Berlin")
        .missed(duly::cron::Missed::All(3))
        .overlap(duly::cron::Overlap::Skip)
        .jitter(std::time::Duration::from_secs(30));
    duly.crons().put(rule).await?;
    duly.crons().trigger("copied").await?;
    duly.crons().pause("copied").await?;
    duly.crons().resume("copied").await?;
    duly.crons().remove("copied").await?;
    Ok(())
}

#[rustfmt::skip]
async fn change_jobs(duly: &duly::Duly) -> duly::Result<()> {
    duly.jobs().reschedule("01890a5d-ac96-774b-bcce-b302099a8057".parse()?, duly::job::Due::After(std::time::Duration::from_secs(9000))).await?;
    duly.jobs().reschedule("01890a5d-ac96-774b-bcce-b302099a8057".parse()?, duly::job::Due::Now).await?;
    duly.jobs().edit("01890a5d-ac96-774b-bcce-b302099a8057".parse()?, duly::admin::JobEdit::new().args(r#"{"text":"it's new"}"#.to_owned())).await?;
    duly.jobs().reschedule_all(r#"-state:done kind:copied.job "it's""#.parse()?, duly::job::Due::Now).run().await?;
    duly.jobs().cancel_all(r#"-state:done kind:copied.job "it's""#.parse()?).run().await?;
    for id in ["01890a5d-ac96-774b-bcce-b302099a8057"] {
        duly.jobs().reschedule(id.parse()?, duly::job::Due::Now).await?;
    }
    for id in ["01890a5d-ac96-774b-bcce-b302099a8057"] {
        duly.jobs().cancel(id.parse()?).await?;
    }
    duly.jobs().remove("01890a5d-ac96-774b-bcce-b302099a8057".parse()?).await?;
    duly.jobs().remove_all(r#"-state:done kind:copied.job "it's""#.parse()?).run().await?;
    Ok(())
}

#[rustfmt::skip]
async fn change_queue(duly: &duly::Duly) -> duly::Result<()> {
    duly.queues().pause("copied").await?;
    let capacity = duly::admin::Capacity::unlimited().jobs(Some(1000));
    duly.queues().set_capacity("copied", capacity).await?;
    duly.queues().resume("copied").await?;
    duly.queues().clear("copied").run().await?;
    duly.queues().remove("copied").await?;
    Ok(())
}
