# Every command a contributor needs. `make test` is what CI runs.

.PHONY: help test test-istio lint advisories testbed simulate judge bench bench-local bench-inventory bench-flagger bench-xds crds kustomize test-migrate bench-dashboard test-flagger fuzz

help: ## List the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "%-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# A test program that hangs is killed; the harness has printed the test's name by then.
LIMITED = --config 'target."cfg(all())".runner = ["timeout", "--foreground", "--verbose", "25m"]'

test: testbed lint ## Set up the real servers, then run every check and every test
	cargo test --workspace --locked --no-fail-fast $(LIMITED)

test-istio: testbed ## Releases through a real Istio: istiod (minutes to build, once) and Envoy
	testbed/setup istiod
	cargo test --locked --test istio -- --nocapture

test-migrate: testbed ## serin migrate --live takes ten Canaries over from the real Flagger (minutes to build, once)
	testbed/setup flagger-controller
	cargo test --locked --test takeover -- --nocapture

test-flagger: testbed ## Flagger's own end-to-end scripts on `serin run` (minutes)
	testbed/setup flagger-affinity
	cargo test --locked --test flagger -- --test-threads 5

fuzz: ## What tenants and their servers write, SECONDS per format (600): no panic, bounded cost
	FUZZ_SECONDS=$(or $(SECONDS),600) cargo test --locked --profile simulate --test fuzz -- --nocapture --test-threads 1

lint: ## Formatting and clippy, warnings denied; sources, licences and bans of dependencies
	cargo fmt --all --check
	cargo clippy --workspace --locked --all-targets -- --deny warnings
	cargo test --locked --test dependencies

advisories: ## Known vulnerabilities of dependencies; needs cargo-audit, and its database on GitHub
	cargo audit

testbed: ## Set up the real servers that the tests run against (cached by version)
	testbed/setup

simulate: ## Two thousand seeds of virtual days with faults; SEED=n replays one and prints its history
	SEEDS=$(or $(SEEDS),2000) cargo test --locked --profile simulate --test simulate every_seed -- --nocapture

judge: ## The error rates and detection times of the judge on simulated releases (RUNS=n, CELLS=text)
	RUNS=$(or $(RUNS),400) CELLS='$(CELLS)' cargo test --locked -p serin-core --test releases the_table -- --nocapture

bench: ## Cost of a decision and of a check by the judge
	cargo bench --locked --bench decide --bench judge

bench-local: testbed ## kube-local beside the real kube-apiserver
	cargo bench --locked --bench local

bench-inventory: ## The inventory of 10,000 pods: time, time of one change, memory, CPU while pods restart
	cargo bench --locked --bench inventory

bench-dashboard: testbed ## The page: first paint, frames, CPU and memory of the server with 50 viewers (SOAK=minutes goes on)
	cargo bench --locked --bench dashboard -- $(SOAK)

bench-flagger: testbed ## Serin beside Flagger on a real API server (N="20 200" sets the numbers of Canaries)
	testbed/setup flagger-controller
	cargo bench --locked --profile dist --bench flagger -- $(N)

bench-xds: testbed ## The control plane beside go-control-plane: a weight through Envoy, 1,000 proxies (PART=weight or fleet)
	testbed/setup go-control-plane
	cargo bench --locked --bench xds -- $(PART)

crds: ## Generate crds/ from crates/serin-core/src/api
	cargo run --locked --quiet -- crds --dir crds

kustomize: ## Generate gitops/kustomize/serin.yaml from the chart
	HELM="$$(testbed/setup --list | awk '$$1 == "helm" {print $$3}')/helm" gitops/kustomize/generate
