# The image that charts/serin runs:
#
#   docker build --tag serin:0.1.0 .
FROM rust:1.94-alpine AS build
RUN apk add --no-cache build-base
WORKDIR /serin
COPY Cargo.toml Cargo.lock ./
COPY crates crates
COPY src src
COPY benches benches
# Without the demo and its Kubernetes API.
RUN cargo build --locked --profile dist --no-default-features --features aws --bin serin

# Alpine's Rust links statically: all that is needed is whom TLS may trust.
FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /serin/target/dist/serin /usr/local/bin/serin
USER 65532:65532
ENTRYPOINT ["serin"]
CMD ["run"]
