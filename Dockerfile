# One image for everything: servers, agents, the cleanup. A static program, and nothing else.
#
#   docker build --tag quorate:0.2.0 .

FROM rust:1.95-alpine AS build
# For ring, and for the linker.
RUN apk add --no-cache musl-dev
WORKDIR /source
COPY . .
# Alpine's own target is musl, and static.
RUN cargo build --release --locked --package quorate --no-default-features && cp target/release/quorate /quorate

FROM scratch
COPY --from=build /quorate /quorate
USER 65532:65532
ENTRYPOINT ["/quorate"]
