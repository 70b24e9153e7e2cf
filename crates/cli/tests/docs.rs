//! Tests of the README and the documentation: their manifests and commands are valid, their lists are complete.

#![allow(clippy::expect_used, clippy::panic, reason = "a test's helpers may fail the test")]

use std::path::{Path, PathBuf};

use kube::api::{Api, ApiResource, DynamicObject, PostParams};
use kube::core::GroupVersionKind;
use quorate_devcluster::apiserver::{Options, Server};
use quorate_engine::basics::{ObjectKey, Time};
use quorate_engine::callers::Who;
use quorate_engine::condition_reason::ConditionReason;
use quorate_engine::decision::{Denial, DenialReason, Down, Exhausted, Missing, Noun, Numbers, Unhealthy};
use quorate_engine::facts::{BudgetKey, BudgetKind};
use quorate_engine::sentence;
use serde::Deserialize as _;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every page, by its name.
fn pages() -> Vec<(String, String)> {
    let mut pages = vec![("README.md".to_owned(), read(&root().join("README.md")))];
    for entry in std::fs::read_dir(root().join("docs")).expect("the documentation") {
        let path = entry.expect("a file").path();
        if path.extension().is_some_and(|extension| extension == "md") {
            pages.push((path.file_name().expect("a name").to_string_lossy().into_owned(), read(&path)));
        }
    }
    pages
}

/// The blocks of a page in this language.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let parts: Vec<&str> = page.split("```").collect();
    let blocks = parts.iter().skip(1).step_by(2);
    blocks.filter_map(|block| block.strip_prefix(language)?.strip_prefix('\n')).collect()
}

#[tokio::test]
async fn every_manifest_in_the_docs_is_accepted() {
    let server = Server::start(Options::default()).await.expect("a cluster");
    let client = server.client_as("admin", &["system:masters"]).expect("a client");
    for definition in quorate_api::crds::all() {
        Api::all(client.clone()).create(&PostParams::default(), &definition).await.expect("a definition");
    }
    let mut seen = 0;
    for (name, page) in pages() {
        for block in blocks(&page, "yaml") {
            for document in serde_yaml_ng::Deserializer::from_str(block) {
                let object = DynamicObject::deserialize(document)
                    .unwrap_or_else(|error| panic!("{name}: {error} in\n{block}"));
                let types = object.types.clone().unwrap_or_else(|| panic!("{name}: no kind in\n{block}"));
                let gvk = GroupVersionKind::try_from(&types).expect("a kind");
                let resource = ApiResource::from_gvk(&gvk);
                let namespace = object.metadata.namespace.clone().unwrap_or_else(|| "default".to_owned());
                let api: Api<DynamicObject> = match types.kind.as_str() {
                    "ClusterRole" | "Namespace" => Api::all_with(client.clone(), &resource),
                    _ => Api::namespaced_with(client.clone(), &namespace, &resource),
                };
                let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(client.clone());
                let wanted = serde_json::from_value(serde_json::json!({"metadata": {"name": namespace}}));
                // It may already exist.
                let _ = namespaces.create(&PostParams::default(), &wanted.expect("a namespace")).await;
                let params = PostParams { dry_run: true, ..PostParams::default() };
                let made = api.create(&params, &object).await;
                assert!(made.is_ok(), "{name}: {} in\n{block}", made.expect_err("a refusal"));
                seen += 1;
            }
        }
    }
    assert!(seen >= 5, "only {seen} objects were found");
}

/// The program accepts the commands that the documentation shows.
#[test]
fn every_command_in_the_docs_is_accepted() {
    let mut seen = 0;
    for (name, page) in pages() {
        let typed = ["", "console"].into_iter().flat_map(|language| blocks(&page, language));
        for line in typed.flat_map(str::lines) {
            let line = line.trim().trim_start_matches("$ ");
            let Some(args) = ["quorate ", "kubectl quorate ", "cargo run --release -- "]
                .iter()
                .find_map(|p| line.strip_prefix(p))
            else {
                continue;
            };
            let args: Vec<&str> = args.split(" | ").next().unwrap_or_default().split_whitespace().collect();
            let output = std::process::Command::new(env!("CARGO_BIN_EXE_quorate"))
                .args(&args)
                .arg("--help")
                .output()
                .expect("quorate");
            let help = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{name}: `{line}` is not accepted");
            for flag in args.iter().filter(|arg| arg.starts_with("--")) {
                let flag = flag.split('=').next().unwrap_or_default();
                assert!(help.contains(flag), "{name}: `{line}`: there is no {flag}");
            }
            seen += 1;
        }
    }
    assert!(seen >= 2, "only {seen} commands were found");
}

/// The README shows the denial of a drain, word for word as the engine writes it.
#[test]
fn the_denial_in_the_readme_is_the_one_of_the_engine() {
    let readme = read(&root().join("README.md"));
    let shown = blocks(&readme, "").into_iter().find(|block| block.starts_with("error when evicting"));
    let shown = shown.expect("the denial of a drain").lines().collect::<Vec<_>>().join(" ");
    let (before, denial) = shown.split_once(" denied the request: ").expect("a refusal");
    let expected = "error when evicting pods/\"llm-0-2\" -n \"inference\" (will retry after 5s): admission webhook \
                    \"evictions.quorate.dev\"";
    assert_eq!(before, expected);
    let now = Time::default();
    let leader = Missing { pod: "llm-3".into(), why: Unhealthy::Held, since: Some(now) };
    let exhausted = Exhausted {
        noun: Noun::Group,
        unit: "0".into(),
        unit_is_down: false,
        numbers: Numbers { current: 3, desired: 3, expected: 4, ..Numbers::default() },
        down: vec![Down { unit: "3".into(), missing: vec![leader], healthy: (3, 4) }],
        down_total: 1,
    };
    let budget = BudgetKey { object: ObjectKey::new("inference", "llm"), kind: BudgetKind::DisruptionBudget };
    let block = Denial { budget: Some(budget), reason: DenialReason::Exhausted(Box::new(exhausted)) };
    assert_eq!(denial, sentence::refusal(&[block], now));
}

#[test]
fn every_reason_of_a_condition_is_in_the_table_with_its_remedy() {
    let messages = read(&root().join("docs/messages.md"));
    for reason in ConditionReason::all() {
        let status = if reason.remedy().is_none() { "True" } else { "False" };
        let action = reason.remedy().unwrap_or("none");
        let row = format!("| {} | {reason} | {status} | {action} |", reason.condition().name());
        assert!(messages.lines().any(|line| line == row), "docs/messages.md does not have this row:\n{row}");
    }
}

/// The string literals in the body of a function.
fn literals_in<'a>(source: &'a str, function: &str) -> Vec<&'a str> {
    let (_, body) = source.split_once(&format!("fn {function}(")).expect("the function");
    let (body, _) = body.split_once("\n}\n").expect("its end");
    body.split('"').skip(1).step_by(2).collect()
}

#[test]
fn every_label_value_of_a_metric_is_in_the_docs() {
    let page = read(&root().join("docs/metrics.md"));
    let source = read(&root().join("crates/server/src/metrics.rs"));
    for function in ["admission", "refusal"] {
        let values = literals_in(&source, function);
        assert!(values.len() >= 10, "{values:?}");
        for value in values {
            assert!(page.contains(&format!("`{value}`")), "docs/metrics.md does not explain {value}");
        }
    }
    // Every metric that an alert uses is in the tables.
    let (tables, alerts) = page.split_once("## Alerts").expect("a part on alerts");
    let mut names = alerts.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let known = |name: &str| tables.contains(&format!("`{}`", name.trim_end_matches("_bucket")));
    assert_eq!(names.find(|name| name.starts_with("quorate_") && !known(name)), None);
}

#[test]
fn every_exempt_caller_is_in_the_docs() {
    let page = read(&root().join("docs/security.md"));
    let (_, listed) = page.split_once("## Exempt callers").expect("the part");
    let (listed, _) = listed.split_once("\n## ").expect("its end");
    let rows: Vec<&str> =
        listed.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    let callers = quorate_engine::callers::EXEMPT.iter().map(|exempt| match exempt.who {
        Who::User(user) => user.to_owned(),
        Who::Prefix(prefix) => format!("{prefix}…"),
    });
    assert_eq!(rows, callers.collect::<Vec<_>>());
}

/// The table in docs/security.md explains every write permission of the servers.
#[test]
fn every_write_permission_is_in_the_docs() {
    let page = read(&root().join("docs/security.md")).to_lowercase();
    let (_, listed) = page.split_once("## the rights of a server, and why").expect("the part");
    let (listed, _) = listed.split_once("\n## ").expect("its end");
    let rights = listed.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    // A right to read pods does not explain one to write them.
    let is_write = |right: &&str| {
        let reads = ["read ", "list "].iter().any(|verb| right.starts_with(verb));
        !reads || ["create", "patch", "write"].iter().any(|verb| right.contains(verb))
    };
    let explained: Vec<&str> =
        rights.filter(is_write).flat_map(|right| right.split(|c: char| !c.is_ascii_alphanumeric())).collect();
    let release = read(&root().join("charts/rendered/default.yaml"));
    let mut roles = 0;
    for document in serde_yaml_ng::Deserializer::from_str(&release) {
        let object = serde_json::Value::deserialize(document).expect("an object");
        if object["metadata"]["name"] != "quorate-server" {
            continue;
        }
        let rules = object["rules"].as_array().cloned().unwrap_or_default();
        roles += usize::from(!rules.is_empty());
        let strings = |rule: &serde_json::Value, of: &str| -> Vec<String> {
            rule[of]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(|text| Some(text.as_str()?.to_owned()))
                .collect()
        };
        let writes = |rule: &&serde_json::Value| {
            strings(rule, "verbs").iter().any(|verb| !["get", "list", "watch"].contains(&verb.as_str()))
        };
        for resource in rules.iter().filter(writes).flat_map(|rule| strings(rule, "resources")) {
            let kind = resource.split('/').next().unwrap_or_default();
            assert!(
                explained.contains(&kind),
                "docs/security.md does not explain why servers write {resource}"
            );
        }
    }
    assert_eq!(roles, 2, "a ClusterRole and a Role");
}

#[test]
fn every_link_leads_to_a_file() {
    for (name, page) in pages() {
        let folder = if name == "README.md" { root() } else { root().join("docs") };
        for target in page.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = target.split('#').next().unwrap_or_default();
            if !file.is_empty() && !file.contains("://") {
                assert!(folder.join(file).exists(), "{name}: {target} does not exist");
            }
        }
    }
}

/// The paths of all values, down to where the cluster's own fields begin.
fn values(at: &str, fields: &serde_yaml_ng::Mapping, into: &mut Vec<String>) {
    for (name, value) in fields {
        let path = format!("{at}{}", name.as_str().expect("a name"));
        let free = path.ends_with("resources") || path.ends_with("odeSelector");
        match value.as_mapping().filter(|fields| !fields.is_empty() && !free) {
            Some(fields) => values(&format!("{path}."), fields, into),
            None => into.push(path),
        }
    }
}

#[test]
fn every_chart_value_is_in_the_docs() {
    let page = read(&root().join("docs/install.md"));
    let chart = serde_yaml_ng::from_str(&read(&root().join("charts/quorate/values.yaml"))).expect("values");
    let mut known = Vec::new();
    values("", &chart, &mut known);
    let shown: Vec<&str> = page
        .lines()
        .filter(|line| line.starts_with("| `"))
        .filter_map(|line| line.split('|').nth(1))
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .collect();
    for value in &known {
        assert!(shown.contains(&value.as_str()), "docs/install.md does not explain {value}");
    }
    for value in shown {
        assert!(
            known.iter().any(|known| known == value),
            "docs/install.md explains {value}, which does not exist"
        );
    }
}

#[test]
fn the_chart_has_the_documented_alerts() {
    let page = read(&root().join("docs/metrics.md"));
    let (_, alerts) = page.split_once("## Alerts worth having").expect("alerts");
    let rendered = read(&root().join("charts/rendered/everything.yaml"));
    let known: Vec<&str> = rendered.lines().filter_map(|line| line.trim().strip_prefix("expr: ")).collect();
    let rows = alerts.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    let documented: Vec<(String, &str)> = rows
        .map(|(when, rest)| (when.replace("\\|", "|"), rest.split(' ').next().unwrap_or_default()))
        .collect();
    let expressions: Vec<&str> = documented.iter().map(|(when, _)| when.as_str()).collect();
    assert_eq!(expressions, known, "docs/metrics.md and the chart have different alerts");
    for (when, after) in documented.iter().filter(|(_, after)| *after != "|") {
        let rule = format!("expr: {when}\n          for: {after}\n");
        assert!(rendered.contains(&rule), "the chart does not wait {after} for {when}");
    }
}

/// The file and the function of a row in a table of steps.
fn step(line: &str) -> Option<(&str, &str)> {
    let mut cells = line.trim_matches('|').split('|').map(str::trim);
    cells.next()?.parse::<u32>().ok()?;
    let (_, file, function) = (cells.next()?, cells.next()?, cells.next()?);
    Some((file.trim_matches('`'), function.trim_matches('`')))
}

#[test]
fn the_walkthroughs_name_existing_files_and_functions() {
    let page = read(&root().join("docs/architecture.md"));
    let walks: Vec<&str> = page.split("\n## ").filter(|section| section.contains("| step |")).collect();
    let eviction =
        walks.iter().find(|walk| walk.starts_with("An eviction")).expect("the walk of an eviction");
    assert!(eviction.lines().filter_map(step).count() <= 18);
    for walk in walks {
        assert!(walk.lines().filter_map(step).count() > 5, "{walk}");
        for (file, function) in walk.lines().filter_map(step) {
            let code = read(&root().join(file));
            let (of, name) = function.split_once("::").unwrap_or(("", function));
            let is_there = ["(", "<"].iter().any(|next| code.contains(&format!("fn {name}{next}")));
            assert!(is_there, "{file} has no function {name}");
            assert!(of.is_empty() || code.contains(&format!("impl {of} {{")), "{file} has no {of}");
        }
    }
}
