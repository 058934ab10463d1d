# The commands that the dashboard shows for its forms, as the browser tests fill them in. A test of the command line runs them.
duly push mail.welcome '{"text":"it'\''s \"$HOME\" `id` !! \\ ; rm -rf * #",
"big":123456789012345678901234567890}' --queue=mail --priority=high --max-attempts=25 --tag=eu --tag=night --in=2h30m '--unique=it'\''s "$HOME" `id` !! \ ; rm -rf * #'
duly cron add copied '*/5 3 * * MON' --tz=Europe/Berlin --kind=mail.welcome '--args={"text":"it'\''s"}' --queue=mail --priority=low --max-attempts=7 --timeout=90s --keep=2d --tag=eu --missed=all:3 --overlap=skip --jitter=30s
duly cron trigger copied
duly cron pause copied
duly cron resume copied
duly cron rm copied

duly jobs retry 01890a5d-ac96-774b-bcce-b302099a8057
duly jobs edit 01890a5d-ac96-774b-bcce-b302099a8057 '--args={"text":"it'\''s new"}'
duly jobs retry -- '-state:done kind:copied.job "it'\''s"'
duly jobs cancel -- '-state:done kind:copied.job "it'\''s"'
duly jobs cancel 01890a5d-ac96-774b-bcce-b302099a8057
duly jobs rm 01890a5d-ac96-774b-bcce-b302099a8057
duly jobs rm -- '-state:done kind:copied.job "it'\''s"'

duly queues pause copied
duly queues capacity copied --jobs=1000
duly queues resume copied
duly queues clear copied
duly queues rm copied
