//! Image names: `nginx` and `docker.io/library/nginx:latest` are the same.

use std::borrow::Cow;

/// The full name of an image: with registry, repository, and a tag or a digest. If there is a digest, the tag is
/// ignored. A bare `sha256:` digest is returned as it is.
pub(crate) fn full_name(name: &str) -> String {
    // The runtime shows a bare digest if the image has no name.
    if name.starts_with("sha256:") {
        return name.to_owned();
    }
    let (name, digest) = match name.split_once('@') {
        Some((name, digest)) => (name, Some(digest)),
        None => (name, None),
    };
    // A colon before the last slash is a port.
    let slash = name.rfind('/').map_or(0, |at| at + 1);
    let (repository, tag) = match name[slash..].find(':') {
        Some(colon) => (&name[..slash + colon], &name[slash + colon + 1..]),
        None => (name, "latest"),
    };
    let repository: Cow<'_, str> = match repository.split_once('/') {
        Some((registry, rest)) if is_registry(registry) => match registry {
            "index.docker.io" | "docker.io" if !rest.contains('/') => {
                format!("docker.io/library/{rest}").into()
            }
            "index.docker.io" => format!("docker.io/{rest}").into(),
            _ => repository.into(),
        },
        Some(_) => format!("docker.io/{repository}").into(),
        None => format!("docker.io/library/{repository}").into(),
    };
    match digest {
        Some(digest) => format!("{repository}@{digest}"),
        None => format!("{repository}:{tag}"),
    }
}

/// The image that a container runs, under the name in the spec if the digests show that it is the same image.
///
/// A runtime may show another name of the same image. A digest in the spec is compared with the digest that runs.
pub(crate) fn running<'a>(
    wanted: Option<&'a str>,
    shown: Option<&'a str>,
    id: Option<&str>,
) -> Option<&'a str> {
    let by_digest = digest(wanted).is_some_and(|digest| {
        let Some(id) = id.filter(|id| !id.is_empty()) else { return false };
        // If the status shows no image digest, the only evidence is that the container is a new one.
        id.ends_with(digest) || (is_bare(id) && shown.is_none_or(is_bare))
    });
    if by_digest { wanted } else { shown }
}

/// Whether the spec names a digest and the container runs an image with another digest.
pub(crate) fn is_another(wanted: Option<&str>, id: Option<&str>) -> bool {
    let (Some(digest), Some(id)) = (digest(wanted), id) else { return false };
    !is_bare(id) && !id.ends_with(digest)
}

fn digest(name: Option<&str>) -> Option<&str> {
    name?.split_once('@').map(|(_, digest)| digest).filter(|digest| !digest.is_empty())
}

/// Whether this is the digest of an image's configuration, as containerd shows it if it has no other. It is unrelated
/// to the digest by which the image is pulled.
fn is_bare(id: &str) -> bool {
    !id.contains('@')
}

fn is_registry(word: &str) -> bool {
    word == "localhost" || word.contains(['.', ':'])
}

#[cfg(test)]
mod tests {
    use super::{full_name, is_another, running};

    #[test]
    fn an_image_name_is_completed() {
        let cases = [
            ("nginx", "docker.io/library/nginx:latest"),
            ("nginx:1.27", "docker.io/library/nginx:1.27"),
            ("docker.io/nginx", "docker.io/library/nginx:latest"),
            ("index.docker.io/library/nginx", "docker.io/library/nginx:latest"),
            ("bitnami/redis:7", "docker.io/bitnami/redis:7"),
            ("registry.k8s.io/pause:3.10", "registry.k8s.io/pause:3.10"),
            ("localhost:5000/llm", "localhost:5000/llm:latest"),
            ("localhost/llm:1", "localhost/llm:1"),
            ("nginx:1.27@sha256:abc", "docker.io/library/nginx@sha256:abc"),
            ("sha256:0123", "sha256:0123"),
            ("", "docker.io/library/:latest"),
            ("/", "docker.io//:latest"),
            (":", "docker.io/library/:"),
        ];
        for (name, full) in cases {
            assert_eq!(full_name(name), full, "{name}");
        }
    }

    #[test]
    fn a_digest_is_compared_with_the_running_digest() {
        let wanted = Some("llm@sha256:abc");
        assert_eq!(running(wanted, Some("llm:v2"), Some("docker.io/library/llm@sha256:abc")), wanted);
        assert_eq!(running(wanted, Some("llm:v2"), Some("docker.io/library/llm@sha256:def")), Some("llm:v2"));
        assert_eq!(running(wanted, Some("llm:v2"), None), Some("llm:v2"));
        assert_eq!(running(Some("llm@"), Some("llm:v2"), Some("x")), Some("llm:v2"));
        // The digest of the configuration, not of the image.
        assert_eq!(running(wanted, Some("sha256:123"), Some("sha256:123")), wanted);
        assert_eq!(running(wanted, Some("llm@sha256:def"), Some("sha256:123")), Some("llm@sha256:def"));
    }

    #[test]
    fn only_an_image_digest_shows_another_image() {
        let wanted = Some("llm@sha256:abc");
        assert!(is_another(wanted, Some("docker-pullable://llm@sha256:def")));
        assert!(!is_another(wanted, Some("docker.io/library/llm@sha256:abc")));
        for id in [None, Some(""), Some("sha256:def"), Some("docker://sha256:def")] {
            assert!(!is_another(wanted, id), "{id:?}");
        }
        assert!(!is_another(Some("llm:v1"), Some("llm@sha256:def")));
    }
}
