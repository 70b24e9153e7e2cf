//! Plans the next steps of a Deployment. Pure functions.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::super::kinds::{DeploymentSpec, resolve};

/// A ReplicaSet of the Deployment.
#[derive(Clone, Debug)]
pub(super) struct Set {
    pub(super) name: String,
    /// Whether the set has the Deployment's current template.
    pub(super) is_new: bool,
    pub(super) wanted: i32,
    pub(super) available: i32,
    /// Number of pods that have not ended yet, including terminating pods.
    pub(super) lingering: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Create the ReplicaSet of the current template with this many pods.
    Create(i32),
    /// Scale this ReplicaSet to this many pods.
    Scale(String, i32),
}

struct Bounds {
    surge: i32,
    unavailable: i32,
}

fn bounds(spec: &DeploymentSpec) -> Bounds {
    let rolling = spec.strategy.rolling_update.clone().unwrap_or_default();
    let quarter = || IntOrString::String("25%".to_owned());
    let surge = resolve(&rolling.max_surge.unwrap_or_else(quarter), spec.replicas, true);
    let unavailable = resolve(&rolling.max_unavailable.unwrap_or_else(quarter), spec.replicas, false);
    // If both were 0, the rollout could not progress.
    let unavailable = if surge == 0 && unavailable == 0 { 1 } else { unavailable.min(spec.replicas) };
    Bounds { surge, unavailable }
}

/// Maximum number of unavailable pods.
pub(super) fn max_unavailable(spec: &DeploymentSpec) -> i32 {
    if spec.strategy.kind == "Recreate" { 0 } else { bounds(spec).unavailable }
}

/// The next steps for these ReplicaSets, ordered from oldest to newest. Empty if there is nothing to do now.
pub(super) fn plan(spec: &DeploymentSpec, sets: &[Set]) -> Vec<Step> {
    let (new, old): (Vec<&Set>, Vec<&Set>) = sets.iter().partition(|set| set.is_new);
    let new = new.last().copied();
    let active: Vec<_> = sets.iter().filter(|set| set.wanted > 0).collect();
    if spec.paused {
        return match active.as_slice() {
            [only] if only.wanted != spec.replicas => vec![Step::Scale(only.name.clone(), spec.replicas)],
            _ => Vec::new(),
        };
    }
    if spec.strategy.kind == "Recreate" {
        return recreate(spec, new, &old);
    }
    let bounds = bounds(spec);
    let total: i32 = sets.iter().map(|set| set.wanted).sum();
    let room = (spec.replicas + bounds.surge - total).max(0);
    let Some(new) = new else { return vec![Step::Create(room.min(spec.replicas))] };
    let target = if new.wanted > spec.replicas {
        spec.replicas
    } else {
        new.wanted + room.min(spec.replicas - new.wanted)
    };
    if target != new.wanted {
        return vec![Step::Scale(new.name.clone(), target)];
    }
    shrink(spec, &bounds, new, &old, total)
}

fn recreate(spec: &DeploymentSpec, new: Option<&Set>, old: &[&Set]) -> Vec<Step> {
    let down: Vec<_> =
        old.iter().filter(|set| set.wanted > 0).map(|set| Step::Scale(set.name.clone(), 0)).collect();
    if !down.is_empty() {
        return down;
    }
    if old.iter().any(|set| set.lingering > 0) {
        return Vec::new();
    }
    match new {
        None => vec![Step::Create(spec.replicas)],
        Some(set) if set.wanted != spec.replicas => vec![Step::Scale(set.name.clone(), spec.replicas)],
        Some(_) => Vec::new(),
    }
}

/// Scales down the old sets as far as the new set replaces them. Unavailable pods go first.
fn shrink(spec: &DeploymentSpec, bounds: &Bounds, new: &Set, old: &[&Set], total: i32) -> Vec<Step> {
    let least = spec.replicas - bounds.unavailable;
    let mut may_go = total - least - (new.wanted - new.available).max(0);
    let mut targets: Vec<(String, i32, i32)> = Vec::new();
    for set in old.iter().filter(|set| set.wanted > 0) {
        let broken = (set.wanted - set.available).clamp(0, may_go.max(0));
        may_go -= broken;
        targets.push((set.name.clone(), set.wanted, set.wanted - broken));
    }
    let mut spare = new.available + old.iter().map(|set| set.available).sum::<i32>() - least;
    spare = spare.min(may_go);
    for (_, _, target) in &mut targets {
        let take = (*target).clamp(0, spare.max(0));
        *target -= take;
        spare -= take;
    }
    let changed = targets.into_iter().filter(|(_, wanted, target)| wanted != target);
    changed.map(|(name, _, target)| Step::Scale(name, target)).collect()
}

#[cfg(test)]
#[allow(clippy::needless_pass_by_value, reason = "json!(…) stands where it is used")]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn set(name: &str, is_new: bool, wanted: i32, available: i32) -> Set {
        Set {
            name: name.to_owned(),
            is_new,
            wanted,
            available,
            lingering: usize::try_from(available).unwrap(),
        }
    }

    fn steps(spec: Value, sets: &[Set]) -> Vec<String> {
        let mut whole = json!({"replicas": 4, "selector": {}});
        json_patch::merge(&mut whole, &spec);
        let show = |step: &Step| match step {
            Step::Create(count) => format!("create {count}"),
            Step::Scale(name, count) => format!("{name}={count}"),
        };
        plan(&serde_json::from_value(whole).unwrap(), sets).iter().map(show).collect()
    }

    fn rolling(surge: Value, unavailable: Value) -> Value {
        json!({"strategy": {"rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}})
    }

    #[test]
    fn a_new_deployment_creates_a_set_and_scales_it() {
        assert_eq!(steps(json!({}), &[]), ["create 4"]);
        assert_eq!(steps(json!({"replicas": 6}), &[set("new", true, 4, 4)]), ["new=6"]);
        assert_eq!(steps(json!({"replicas": 0}), &[set("new", true, 4, 4)]), ["new=0"]);
        assert!(steps(json!({}), &[set("new", true, 4, 2)]).is_empty());
    }

    #[test]
    fn a_rollout_stays_within_surge_and_unavailable() {
        let one_up = rolling(json!(1), json!(0));
        let old = |wanted, available| set("old", false, wanted, available);
        let new = |wanted, available| set("new", true, wanted, available);
        assert_eq!(steps(one_up.clone(), &[old(4, 4)]), ["create 1"]);
        assert!(steps(one_up.clone(), &[old(4, 4), new(1, 0)]).is_empty(), "the new one is not there yet");
        assert_eq!(steps(one_up.clone(), &[old(4, 4), new(1, 1)]), ["old=3"]);
        assert_eq!(steps(one_up.clone(), &[old(3, 3), new(1, 1)]), ["new=2"]);
        assert_eq!(steps(one_up.clone(), &[old(1, 1), new(4, 4)]), ["old=0"]);
        let one_down = rolling(json!(0), json!(1));
        assert_eq!(steps(one_down.clone(), &[old(4, 4)]), ["create 0"]);
        assert_eq!(steps(one_down.clone(), &[old(4, 4), new(0, 0)]), ["old=3"]);
        assert_eq!(steps(one_down.clone(), &[old(3, 3), new(0, 0)]), ["new=1"]);
        assert!(steps(one_down, &[old(3, 3), new(1, 0)]).is_empty());
        assert_eq!(steps(one_up, &[old(4, 2), new(1, 1)]), ["old=3"], "broken old pods go first");
        assert_eq!(steps(rolling(json!(0), json!(0)), &[old(4, 4), new(0, 0)]), ["old=3"]);
    }

    #[test]
    fn recreate_waits_until_the_last_old_pod_has_ended() {
        let recreate = json!({"strategy": {"type": "Recreate"}});
        assert_eq!(steps(recreate.clone(), &[set("old", false, 4, 4)]), ["old=0"]);
        assert!(steps(recreate.clone(), &[set("old", false, 0, 1)]).is_empty());
        assert_eq!(steps(recreate, &[set("old", false, 0, 0)]), ["create 4"]);
    }

    #[test]
    fn a_paused_deployment_scales_but_does_not_roll_out() {
        let paused = json!({"paused": true, "replicas": 5});
        assert_eq!(steps(paused.clone(), &[set("old", false, 4, 4)]), ["old=5"]);
        assert!(steps(paused, &[set("old", false, 4, 4), set("new", true, 1, 1)]).is_empty());
    }
}
