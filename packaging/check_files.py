"""Checks of packaging/check that only read files: syntax, metric names, links, files of the Debian package.

    check_files.py OUT     run in the root of the repository; OUT gets the dashboard's expressions as rules for promtool
"""

import json
import re
import sys
import tomllib
from pathlib import Path

import yaml

HISTOGRAM_SUFFIXES = ("_bucket", "_sum", "_count")
RULES = "packaging/prometheus/duly.rules.yaml"
DASHBOARD = "packaging/grafana/duly.json"


def documented_metrics():
    """Returns the metrics of `duly serve` with their kinds, labels included."""
    page = Path("docs/reference/metrics.md").read_text().split("## From `duly serve`")[1]
    rows = re.findall(r"^\| `(duly_\w+)` \| (\w+) \| ([^|]*) \|", page, re.MULTILINE)
    return {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


def expression_errors(source, expression, metrics):
    """Returns an error for each unknown metric, and for each label that its metric does not have."""
    for name, selector in re.findall(r"\b(duly_\w+)(\{[^}]*\})?", expression):
        base = name
        for suffix in HISTOGRAM_SUFFIXES:
            stem = name.removesuffix(suffix)
            if stem in metrics and metrics[stem][0] == "histogram":
                base = stem
        if base not in metrics:
            yield f"{source}: docs/reference/metrics.md has no {name} of duly serve"
            continue
        known = metrics[base][1] | {"job", "instance", "le"}
        for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector):
            if label not in known:
                yield f"{source}: {name} has no label {label}"


def read_rules():
    groups = yaml.safe_load(Path(RULES).read_text())["groups"]
    return [(rule["alert"], rule["expr"]) for group in groups for rule in group["rules"]]


def read_dashboard():
    """Returns the queries of panels and of variables."""
    dashboard = json.loads(Path(DASHBOARD).read_text())
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids), f"{DASHBOARD}: panels share an id"
    panels = [(p["title"], target["expr"]) for p in dashboard["panels"] for target in p["targets"]]
    variables = [(v["name"], v["definition"]) for v in dashboard["templating"]["list"] if v["type"] == "query"]
    return panels, variables


def write_promtool_rules(out, panels):
    """Writes each query as a recording rule, so that promtool parses it. Grafana's variables get sample values."""
    rules = []
    for at, (_, expression) in enumerate(panels):
        for name, value in {"$__rate_interval": "5m", "$job": "duly", "$queue": ".*"}.items():
            expression = expression.replace(name, value)
        rules.append({"record": f"panel:{at}", "expr": expression})
    out.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))


def compose_errors():
    services = yaml.safe_load(Path("packaging/container/compose.yaml").read_text())["services"]
    if set(services) != {"redis", "serve", "work"}:
        yield f"compose.yaml: services are {sorted(services)}"
    redis = services["redis"]["command"]
    for option, value in (("--appendonly", "yes"), ("--maxmemory-policy", "noeviction")):
        if redis[redis.index(option) + 1] != value:
            yield f"compose.yaml: Redis needs {option} {value}"


def package_errors():
    deb = tomllib.loads(Path("cli/Cargo.toml").read_text())["package"]["metadata"]["deb"]
    for source, _, _ in deb["assets"]:
        # Builds write these; check makes the second if it has a binary.
        is_built = source.startswith(("target/", "../target/"))
        if not is_built and not list(Path("cli").glob(source)):
            yield f"cli/Cargo.toml: there is no {source}"
    installed = {destination + (Path(source).name if destination.endswith("/") else "") for source, destination, _ in deb["assets"]}
    for file in deb["conf-files"]:
        if file.lstrip("/") not in installed:
            yield f"cli/Cargo.toml: {file} is a configuration file, but no asset"
    for unit in Path("packaging/systemd").glob("duly-*.*"):
        if f"usr/lib/systemd/system/{unit.name}" not in installed:
            yield f"cli/Cargo.toml: the package lacks {unit.name}"


def link_errors():
    page = Path("packaging/README.md")
    for link in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if "://" not in link and not (page.parent / link).exists():
            yield f"{page}: {link} does not exist"


def main():
    metrics = documented_metrics()
    panels, variables = read_dashboard()
    errors = [*compose_errors(), *package_errors(), *link_errors()]
    for source, expression in read_rules() + panels + variables:
        errors.extend(expression_errors(source, expression, metrics))
    write_promtool_rules(Path(sys.argv[1]), panels)
    for error in errors:
        print(error, file=sys.stderr)
    print(f"{len(metrics)} documented metrics, {len(read_rules())} alerts, {len(panels)} queries of the dashboard")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
