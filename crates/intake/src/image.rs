//! Names of images: `nginx` and `docker.io/library/nginx:latest` are the same.

use std::borrow::Cow;

/// The full name of an image: with registry, repository, and a tag or a digest. Where there is a digest the tag says
/// nothing. Anything that is no name of an image stands for itself.
pub(crate) fn full_name(name: &str) -> String {
    // An image by its content alone: what the runtime shows when the image has no name.
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

/// The image that a container runs, as the name it was asked for where that can be told.
///
/// A runtime may show another name of the same image. A digest is compared with the digest that runs.
pub(crate) fn running<'a>(
    asked: Option<&'a str>,
    shown: Option<&'a str>,
    id: Option<&str>,
) -> Option<&'a str> {
    let by_digest = asked
        .and_then(|asked| asked.split_once('@'))
        .is_some_and(|(_, digest)| id.is_some_and(|id| id.ends_with(digest) && !digest.is_empty()));
    if by_digest { asked } else { shown }
}

fn is_registry(word: &str) -> bool {
    word == "localhost" || word.contains(['.', ':'])
}

#[cfg(test)]
mod tests {
    use super::{full_name, running};

    #[test]
    fn full_names() {
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
    fn a_digest_is_recognised_by_what_runs() {
        let asked = Some("llm@sha256:abc");
        assert_eq!(running(asked, Some("llm:v2"), Some("docker.io/library/llm@sha256:abc")), asked);
        assert_eq!(running(asked, Some("llm:v2"), Some("docker.io/library/llm@sha256:def")), Some("llm:v2"));
        assert_eq!(running(asked, Some("llm:v2"), None), Some("llm:v2"));
        assert_eq!(running(Some("llm@"), Some("llm:v2"), Some("x")), Some("llm:v2"));
    }
}
