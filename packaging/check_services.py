"""Starts the commands of the systemd units as systemd would, and checks their notifications and their stop.

    check_services.py DIRECTORY     DIRECTORY/bin has duly, healthcheck and backup; the store is in DIRECTORY

As root, the commands run as the user nobody, without capabilities and with NoNewPrivileges.
Other hardening of the units needs systemd and is not applied.
"""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

UNITS = Path("packaging/systemd")
START_TIMEOUT = 20
NOBODY = 65534
PORT = 17711


def read_setting(unit, name):
    return re.search(rf"^{name}=(.*)$", (UNITS / unit).read_text(), re.MULTILINE)[1]


def as_service(command):
    if os.geteuid() != 0:
        return command
    user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs"]
    return [*user, "--bounding-set=-all", "--inh-caps=-all", *command]


def environment(directory, **more):
    path = f"{directory}/bin:{os.environ['PATH']}"
    return {"PATH": path, "DULY_STORE": f"{directory}/duly.db", "DULY_LISTEN": f"127.0.0.1:{PORT}", **more}


def wait_for(notify, states):
    """Receives notifications until all of these states have arrived."""
    missing, deadline = set(states), time.monotonic() + START_TIMEOUT
    while missing:
        notify.settimeout(max(deadline - time.monotonic(), 0.01))
        missing -= set(notify.recv(4096).decode().splitlines())


def check_unit(unit, directory, while_running, watchdog=None):
    command = shlex.split(re.sub(r"\s*\$\w+", "", read_setting(unit, "ExecStart")))
    stop_timeout = int(read_setting(unit, "TimeoutStopSec"))
    path = f"{directory}/notify-{unit}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        notify.bind(path)
        os.chmod(path, 0o777)
        env = environment(directory, NOTIFY_SOCKET=path)
        if watchdog:
            # A short interval stands for the 30 s of the unit.
            env["WATCHDOG_USEC"] = str(watchdog)
        with open(f"{directory}/{unit}.log", "w") as log:
            process = subprocess.Popen(as_service(command), env=env, cwd=directory, stdout=log, stderr=log)
        try:
            wait_for(notify, ["READY=1"] + (["WATCHDOG=1"] if watchdog else []))
            while_running()
            start = time.monotonic()
            process.send_signal(signal.SIGTERM)
            code = process.wait(stop_timeout)
        except Exception:
            process.kill()
            print(Path(f"{directory}/{unit}.log").read_text(), file=sys.stderr)
            raise
    assert code == 0, f"{unit}: exit code {code} after SIGTERM"
    print(f"{unit}: ready, stopped {time.monotonic() - start:.1f} s after SIGTERM (limit {stop_timeout} s)")


def main():
    directory = Path(sys.argv[1]).resolve()
    env = environment(directory)

    def run(*command, **more):
        return subprocess.run(as_service(list(map(str, command))), env=env | more, cwd=directory, check=True, timeout=60)

    def run_job():
        run("duly", "push", "--wait", "--wait-timeout", "20s", "--", "true")

    def stop_during_job():
        run_job()
        run("duly", "push", "--", "sleep", "2")
        time.sleep(0.5)

    def probe():
        run("healthcheck")
        run("healthcheck", "/readyz")

    check_unit("duly-work.service", directory, stop_during_job, watchdog=500_000)
    log = (directory / "duly-work.service.log").read_text()
    assert "2 done" in log, f"the job that ran at SIGTERM did not finish:\n{log}"
    check_unit("duly-serve.service", directory, probe)
    failed = subprocess.run([directory / "bin/healthcheck"], env=env, capture_output=True, check=False).returncode
    assert failed != 0, "healthcheck succeeds without a server"

    backups = directory / "backups"
    run("mkdir", backups)
    for _ in range(3):
        run("backup", backups, DULY_BACKUPS_KEPT="2")
        time.sleep(1.1)
    assert len(list(backups.iterdir())) == 2, list(backups.iterdir())
    print("backup: three made, two kept")


if __name__ == "__main__":
    main()
