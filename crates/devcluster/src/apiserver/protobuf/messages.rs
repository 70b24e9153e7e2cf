//! The messages of the small objects that `kubectl create` sends: field numbers, names, types.

use super::Shape::{self, Bool, Bytes, Int, IntOrString, Map, Message, Skip, Text};
use super::Spec;

const fn one(number: u64, name: &'static str, shape: Shape) -> Spec {
    Spec { number, name, shape, many: false }
}

const fn many(number: u64, name: &'static str, shape: Shape) -> Spec {
    Spec { number, name, shape, many: true }
}

static META: &[Spec] = &[
    one(1, "name", Text),
    one(2, "generateName", Text),
    one(3, "namespace", Text),
    one(5, "uid", Text),
    one(6, "resourceVersion", Text),
    one(11, "labels", Map(&Text)),
    one(12, "annotations", Map(&Text)),
    many(14, "finalizers", Text),
];

static SELECTOR: &[Spec] = &[one(1, "matchLabels", Map(&Text))];

static PORT: &[Spec] = &[one(1, "name", Text), one(3, "containerPort", Int), one(4, "protocol", Text)];

static CONTAINER: &[Spec] = &[
    one(1, "name", Text),
    one(2, "image", Text),
    many(3, "command", Text),
    many(4, "args", Text),
    many(6, "ports", Message(PORT)),
    one(14, "imagePullPolicy", Text),
];

static POD_SPEC: &[Spec] = &[
    many(2, "containers", Message(CONTAINER)),
    one(3, "restartPolicy", Text),
    one(4, "terminationGracePeriodSeconds", Int),
    one(7, "nodeSelector", Map(&Text)),
    one(8, "serviceAccountName", Text),
];

static TEMPLATE: &[Spec] = &[one(1, "metadata", Message(META)), one(2, "spec", Message(POD_SPEC))];

static DEPLOYMENT_SPEC: &[Spec] =
    &[one(1, "replicas", Int), one(2, "selector", Message(SELECTOR)), one(3, "template", Message(TEMPLATE))];

static JOB_SPEC: &[Spec] = &[
    one(1, "parallelism", Int),
    one(2, "completions", Int),
    one(6, "template", Message(TEMPLATE)),
    one(7, "backoffLimit", Int),
];

static BUDGET_SPEC: &[Spec] = &[
    one(1, "minAvailable", IntOrString),
    one(2, "selector", Message(SELECTOR)),
    one(3, "maxUnavailable", IntOrString),
    one(4, "unhealthyPodEvictionPolicy", Text),
];

static SERVICE_PORT: &[Spec] =
    &[one(1, "name", Text), one(2, "protocol", Text), one(3, "port", Int), one(4, "targetPort", IntOrString)];

static SERVICE_SPEC: &[Spec] = &[
    many(1, "ports", Message(SERVICE_PORT)),
    one(2, "selector", Map(&Text)),
    one(3, "clusterIP", Text),
    one(4, "type", Text),
    one(10, "externalName", Text),
];

static TOKEN_SPEC: &[Spec] = &[many(1, "audiences", Text), one(4, "expirationSeconds", Int)];

/// The supported kinds and their fields.
static KINDS: &[(&str, &[Spec])] = &[
    // Only the server sets the spec of a namespace: its finalizers.
    ("Namespace", &[one(1, "metadata", Message(META)), one(2, "spec", Skip), one(3, "status", Skip)]),
    (
        "ConfigMap",
        &[
            one(1, "metadata", Message(META)),
            one(2, "data", Map(&Text)),
            one(3, "binaryData", Map(&Bytes)),
            one(4, "immutable", Bool),
        ],
    ),
    (
        "Secret",
        &[
            one(1, "metadata", Message(META)),
            one(2, "data", Map(&Bytes)),
            one(3, "type", Text),
            one(4, "stringData", Map(&Text)),
            one(5, "immutable", Bool),
        ],
    ),
    ("ServiceAccount", &[one(1, "metadata", Message(META)), one(4, "automountServiceAccountToken", Bool)]),
    (
        "Service",
        &[one(1, "metadata", Message(META)), one(2, "spec", Message(SERVICE_SPEC)), one(3, "status", Skip)],
    ),
    (
        "Deployment",
        &[
            one(1, "metadata", Message(META)),
            one(2, "spec", Message(DEPLOYMENT_SPEC)),
            one(3, "status", Skip),
        ],
    ),
    ("Job", &[one(1, "metadata", Message(META)), one(2, "spec", Message(JOB_SPEC)), one(3, "status", Skip)]),
    (
        "PodDisruptionBudget",
        &[one(1, "metadata", Message(META)), one(2, "spec", Message(BUDGET_SPEC)), one(3, "status", Skip)],
    ),
    (
        "PriorityClass",
        &[
            one(1, "metadata", Message(META)),
            one(2, "value", Int),
            one(3, "globalDefault", Bool),
            one(4, "description", Text),
            one(5, "preemptionPolicy", Text),
        ],
    ),
    (
        "TokenRequest",
        &[one(1, "metadata", Message(META)), one(2, "spec", Message(TOKEN_SPEC)), one(3, "status", Skip)],
    ),
];

/// The fields of a kind; `None` for kinds that are read as JSON only.
pub(super) fn of_kind(kind: &str) -> Option<&'static [Spec]> {
    KINDS.iter().find(|(name, _)| *name == kind).map(|(_, specs)| *specs)
}
