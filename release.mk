# What a release is made of. Each target is a step of .github/workflows/release.yaml and runs on anybody's machine that has its tools.
DIST ?= dist
PLATFORMS ?= linux/amd64,linux/arm64
IMAGE = $(if $(REGISTRY),$(REGISTRY)/)netaware
PROGRAMS = agent controller
# The digest that a push was given.
digest = $$(sed -n 's/.*"containerimage.digest": *"\(sha256:[0-9a-f]*\)".*/\1/p' $(DIST)/$(1).json)
TOOL = $(RUN) python -c 'import sys; from tests.support.tools import builds as t; print(t.find_or_build_tool(getattr(t, sys.argv[1])))'

.PHONY: check-release
check-release: ## Lint workflows and chart; hold generated files to their sources
	@set -e; lint=$$($(TOOL) ACTIONLINT); $$lint; helm=$$($(TOOL) HELM); $$helm lint --quiet manifests/helm/netaware
	@$(RUN) python manifests/helm/generate.py --check
	@$(RUN) python .ci/bill.py licences --check

.PHONY: release-version
release-version: ## The tag says what pyproject.toml says: TAG=v1.2.3
	@test "$(TAG)" = "v$(VERSION)" || { echo "the tag is $(TAG), the version v$(VERSION)" >&2; exit 1; }

.PHONY: release-images
release-images: ## Build and push for all architectures, with SBOM and provenance; REGISTRY=host/team
	@test -n "$(REGISTRY)" || { echo "REGISTRY=host/team is needed" >&2; exit 1; }
	@mkdir -p $(DIST)
	@set -eu; for name in $(PROGRAMS); do docker buildx build -f Dockerfile.$$name -t "$(IMAGE)-$$name:$(VERSION)" \
	  --platform $(PLATFORMS) --sbom=true --provenance=mode=max --push --metadata-file $(DIST)/$$name.json \
	  --build-arg VERSION=$(VERSION) --build-arg REVISION="$$(git rev-parse HEAD)" $(ARGS) .; done

.PHONY: release-sign
release-sign: ## Sign the pushed images by digest, without a key (cosign)
	@set -eu; $(foreach name,$(PROGRAMS),cosign sign --yes "$(IMAGE)-$(name)@$(call digest,$(name))";)

.PHONY: sbom
sbom: ## SPDX documents of what the images carry, in dist
	@$(RUN) python .ci/bill.py sbom $(DIST)

.PHONY: licences
licences: ## The table of licences, docs/licences.md
	@$(RUN) python .ci/bill.py licences

.PHONY: chart
chart: ## Pack the Helm chart into dist; REGISTRY=host/team
	@$(RUN) python .ci/chart.py --registry "$(REGISTRY)" --digests $(DIST) --to $(DIST)

.PHONY: release-chart
release-chart: ## Push the packed chart to an OCI registry; REGISTRY=host/team
	@test -n "$(REGISTRY)" || { echo "REGISTRY=host/team is needed" >&2; exit 1; }
	@set -e; helm=$$($(TOOL) HELM); $$helm push $(DIST)/netaware-$(VERSION).tgz "oci://$(REGISTRY)/charts"

.PHONY: kind
kind: ## Install, place, upgrade, uninstall on kind; KUBERNETES=1.33
	@.ci/kind $(KUBERNETES)
