//! Budgets and the claims in their ledgers.

use std::collections::BTreeMap;

use quorate_engine::Coverage;
use quorate_engine::basics::Text;
use quorate_engine::claims::{Claim, Ledger, Target, Token};
use quorate_engine::facts::{
    Broken, Budget, BudgetKey, BudgetKind, Covers, HealthRule, Input, Operation, Operations, Rules,
    UnhealthyPolicy, Units,
};

use super::{Cluster, LWS, key};
use crate::scenario::words::{self, Words};

impl Cluster {
    pub(super) fn budget(&mut self, words: &mut Words) -> Result<(), String> {
        let kind =
            if words.flag("pub") { BudgetKind::PodUnavailableBudget } else { BudgetKind::DisruptionBudget };
        let key = BudgetKey { object: key(&words.next()?), kind };
        let by_pub = kind == BudgetKind::PodUnavailableBudget;
        let covers = match (words.take("select"), words.take("target")) {
            (Some(selector), None) => Covers::Selector(words::selector(&selector)?),
            (None, Some(target)) => {
                let (kind, name) = words::kind_and_name(&target)?;
                Covers::Target(kind, name.into())
            }
            (None, None) => Covers::Selector(words::selector(&format!("app={}", key.object.name))?),
            _ => return Err("select or target, not both".to_owned()),
        };
        let min_ready = words.number("min-ready")?;
        let units = match (words.take("scope"), words.take("groups-by"), words.take("group-owner")) {
            (None, None, None) => Units::Pods,
            (Some(scope), None, None) if scope == "Workload" => Units::Workload,
            (None, Some(label), None) => {
                let label = if label == "group-index" || label == "group-key" {
                    format!("{LWS}/{label}")
                } else {
                    label
                };
                Units::Label { key: label.into(), min_ready }
            }
            (None, None, Some(kind)) => Units::Owner { kind: words::kind_of(&kind), min_ready },
            other => return Err(format!("what are the units? {other:?}")),
        };
        let operations = match words.take("ops") {
            // The default of the kind: UPDATE includes resizes that restart containers.
            None if by_pub => Operations::of(&Operation::ASSUMED),
            None => Operations::of(&[Operation::Evict]),
            Some(list) => Operations::of(&list.split(',').map(operation).collect::<Result<Vec<_>, _>>()?),
        };
        let unhealthy = match words.take("unhealthy").as_deref() {
            None if !by_pub => UnhealthyPolicy::IfHealthyBudget,
            Some("IfHealthyBudget") => UnhealthyPolicy::IfHealthyBudget,
            None | Some("AlwaysAllow") => UnhealthyPolicy::AlwaysAllow,
            Some(other) => return Err(format!("what is unhealthy={other}?")),
        };
        let rules = Rules {
            min_available: words.quantity("min")?,
            max_unavailable: words.quantity("max")?,
            units,
            expected: words.number("expected")?,
            unhealthy,
            operations,
            observe: words.flag("observe"),
            health: if by_pub { HealthRule::Strict } else { HealthRule::Ready },
            waivable: by_pub,
            ..Rules::new(covers.clone())
        };
        let version = self.next_version();
        let known = self.budgets.get(&key).filter(|_| !words.flag("new"));
        let uid =
            known.map_or_else(|| format!("{}-{}", key.object.name, version.0).into(), |b| b.uid.clone());
        let mut ledger = known.map(|budget| budget.ledger.clone()).unwrap_or_default();
        if known.is_none() && !words.flag("closed") {
            ledger.enforced = Some(quorate_engine::Coverage::of(&uid, &rules));
        }
        if let Some(protocol) = words.number("protocol")? {
            ledger.protocol = Some(protocol);
        }
        let generation = known.map_or(1, |budget| budget.generation + 1);
        let spec = match words.take("invalid") {
            Some(why) => Err(Broken { why: why.into(), covers, operations }),
            None => Ok(rules),
        };
        // What another server has written into the status.
        let gone = match words.take("vanished") {
            Some(name) => [(name.into(), self.now)].into(),
            None => known.map(|budget| budget.gone.clone()).unwrap_or_default(),
        };
        let memory = known.map(|budget| budget.memory.clone()).unwrap_or_default();
        let annotations = Default::default();
        let is_twin = words.flag("twin");
        let budget =
            Budget { key, uid, generation, version, spec, annotations, is_twin, ledger, gone, memory };
        self.budgets.insert(budget.key.clone(), budget.clone());
        self.apply(Input::Budget(budget));
        Ok(())
    }

    pub(crate) fn budget_key(&self, name: &str) -> Result<BudgetKey, String> {
        let object = key(name);
        let found = self.budgets.keys().find(|key| key.object == object);
        found.cloned().ok_or(format!("no budget {name}"))
    }

    pub(crate) fn edit_ledger(&mut self, key: &BudgetKey, edit: impl FnOnce(&mut Ledger, Coverage)) {
        let version = self.next_version();
        let budget = self.budgets.get_mut(key).unwrap();
        let rules = budget.spec.as_ref();
        let coverage = rules.map_or(Coverage(0), |rules| Coverage::of(&budget.uid, rules));
        edit(&mut budget.ledger, coverage);
        budget.ledger.number += 1;
        budget.version = version;
        let budget = budget.clone();
        self.apply(Input::Budget(budget));
    }

    pub(super) fn claim(&mut self, words: &mut Words) -> Result<(), String> {
        let budget = self.budget_key(&words.next()?)?;
        let pod = words.next()?;
        let uid = self.pods.get(&key(&pod)).ok_or("no such pod")?.uid.clone();
        if let Some(count) = words.number("others")? {
            let at = self.now;
            self.edit_ledger(&budget, |ledger, _| {
                for n in 0..count {
                    let token = Token {
                        operation: Operation::Evict,
                        by: "bob".into(),
                        at,
                        target: Target::default(),
                    };
                    let tokens = BTreeMap::from([(format!("other-{n}").into(), token)]);
                    let claim = Claim { pod: format!("other-{n}").into(), tokens };
                    ledger.claims.insert(format!("uid-{n}").into(), claim);
                }
            });
        }
        let operation = words.take("op").map_or(Ok(Operation::Evict), |op| operation(&op))?;
        let token = words.take("token").unwrap_or_else(|| format!("t{}", self.version));
        let by = words.take("by").unwrap_or("alice".to_owned());
        self.add_claim(&budget, &uid, &pod, &token, operation, &by);
        Ok(())
    }

    pub(crate) fn add_claim(
        &mut self,
        budget: &BudgetKey,
        uid: &Text,
        pod: &str,
        token: &str,
        operation: Operation,
        by: &str,
    ) {
        let at = self.now;
        self.edit_ledger(budget, |ledger, _| {
            let fresh = || Claim { pod: pod.into(), tokens: BTreeMap::new() };
            let claim = ledger.claims.entry(uid.clone()).or_insert_with(fresh);
            claim
                .tokens
                .insert(token.into(), Token { operation, by: by.into(), at, target: Target::default() });
        });
    }

    /// Does what the leader does: removes claims whose effect is visible in the pods.
    pub(super) fn settle(&mut self) {
        let alive: Vec<Text> =
            self.pods.values().filter(|pod| !pod.terminating).map(|pod| pod.uid.clone()).collect();
        for key in self.budgets.keys().cloned().collect::<Vec<_>>() {
            self.edit_ledger(&key, |ledger, _| ledger.claims.retain(|uid, _| alive.contains(uid)));
        }
    }
}

fn operation(text: &str) -> Result<Operation, String> {
    match text {
        "Evict" => Ok(Operation::Evict),
        "Delete" => Ok(Operation::Delete),
        "Update" => Ok(Operation::Update),
        "Resize" => Ok(Operation::Resize),
        "Relabel" => Ok(Operation::Relabel),
        other => Err(format!("what is {other}?")),
    }
}
