# Images, chart and releases. What a release is made of is a step of .github/workflows/release.yaml each, and runs on any machine that
# has its tools.
DIST ?= dist
OVERLAY ?= default
PLATFORMS ?= linux/amd64,linux/arm64
# A name without a registry is docker.io/library's to a kubelet, and to docker; podman and buildah would make it localhost's.
IMAGE = $(or $(REGISTRY),docker.io/library)/netaware
PROGRAMS = agent controller
COMPILERS ?= x86_64-linux-gnu-gcc aarch64-linux-gnu-gcc
# The tag that is checked out, or the next version with the commit; pyproject.toml says how, and hatchling is asked once. Images and
# chart have it as a semantic version, in which a dash stands before what is no release and no plus is.
PYTHON_VERSION := $(if $(filter image push overlay kind version chart release-%,$(MAKECMDGOALS)),$(shell $(RUN) python -m hatchling version))
VERSION = $(subst +,.,$(subst .dev,-dev,$(PYTHON_VERSION)))
ENGINE = engine=; for one in docker podman buildah; do if $$one info >/dev/null 2>&1; then engine=$$one; break; fi; done; \
	test -n "$$engine" || { echo "docker, podman or buildah is needed, and works for this user" >&2; exit 1; }
BUILD_ARGS = --build-arg VERSION=$(VERSION) --build-arg PYTHON_VERSION=$(PYTHON_VERSION) --build-arg REVISION="$$(git rev-parse HEAD 2>/dev/null || echo unknown)"
# The digest that a push was given.
digest = $$(sed -n 's/.*"containerimage.digest": *"\(sha256:[0-9a-f]*\)".*/\1/p' $(DIST)/$(1).json)
TOOL = $(RUN) python -c 'import sys; from tests.support.tools import builds as t; print(t.find_or_build_tool(getattr(t, sys.argv[1])))'

.PHONY: version
version: ## The version of images and chart
	@echo $(VERSION)

.PHONY: image
image: ## Both images, by docker, podman or buildah; REGISTRY=host/team
	@set -eu; $(ENGINE); for name in $(PROGRAMS); do $$engine build -f Dockerfile.$$name -t "$(IMAGE)-$$name:$(VERSION)" $(BUILD_ARGS) $(ARGS) .; done

.PHONY: push
push: ## Push both images; REGISTRY=host/team
	@set -eu; $(ENGINE); for name in $(PROGRAMS); do $$engine push "$(IMAGE)-$$name:$(VERSION)"; done

.PHONY: overlay
overlay: ## An overlay with these images in dist/overlay; OVERLAY=any-scheduler REGISTRY=host/team KUBERNETES=1.36
	@$(if $(KUBERNETES),,echo "for Kubernetes 1.37; for another minor version add KUBERNETES=1.36" >&2)
	@mkdir -p $(DIST)/overlay; { echo "resources: [../../manifests/overlays/$(OVERLAY)]"; \
	  $(if $(KUBERNETES),echo "components: [../../manifests/components/kubernetes-$(KUBERNETES)]";) echo "images:"; for name in $(PROGRAMS); do \
	  echo "  - {name: netaware-$$name, newName: $(IMAGE)-$$name, newTag: $(VERSION)}"; done; } > $(DIST)/overlay/kustomization.yaml

.PHONY: check-release
check-release: ## Lint the chart; compare the table of licences
	@set -e; helm=$$($(TOOL) HELM); \
	  $(RUN) python manifests/helm/generate.py --version 0.0.0 --to $(DIST); $$helm lint --quiet $(DIST)/netaware
	@$(RUN) python .ci/bill.py licences --check

.PHONY: release-version
release-version: ## The tag is the version: TAG=v1.2.3
	@test "$(TAG)" = "v$(VERSION)" || { echo "the tag is $(TAG), the version v$(VERSION)" >&2; exit 1; }

.PHONY: release-images
release-images: ## Build and push for all architectures, with SBOM and provenance; REGISTRY=host/team
	@test -n "$(REGISTRY)" || { echo "REGISTRY=host/team is needed" >&2; exit 1; }
	@mkdir -p $(DIST)
	@set -eu; for name in $(PROGRAMS); do docker buildx build -f Dockerfile.$$name -t "$(IMAGE)-$$name:$(VERSION)" \
	  --platform $(PLATFORMS) --sbom=true --provenance=mode=max --push --metadata-file $(DIST)/$$name.json \
	  $(BUILD_ARGS) $(ARGS) .; done

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
chart: ## Build the Helm chart and pack it into dist; REGISTRY=host/team
	@$(RUN) python manifests/helm/generate.py --version $(VERSION) --registry "$(REGISTRY)" --digests $(DIST) --to $(DIST)
	@set -e; helm=$$($(TOOL) HELM); $$helm package $(DIST)/netaware --destination $(DIST)

.PHONY: release-chart
release-chart: ## Push the packed chart to an OCI registry; REGISTRY=host/team
	@test -n "$(REGISTRY)" || { echo "REGISTRY=host/team is needed" >&2; exit 1; }
	@set -e; helm=$$($(TOOL) HELM); $$helm push $(DIST)/netaware-$(VERSION).tgz "oci://$(REGISTRY)/charts" $(ARGS)

.PHONY: release-wheels
release-wheels: ## Wheels for two processors and for any, and the source; COMPILERS="cc" for this processor alone
	@set -e; for CC in $(COMPILERS); do export CC; $(RUN) python -m hatchling build -t wheel -d $(DIST)/python; done
	@export NETAWARE_PURE=1; $(RUN) python -m hatchling build -t wheel -t sdist -d $(DIST)/python

.PHONY: release-krew
release-krew: ## The plugin's archive and krew's manifest in dist; REPOSITORY=owner/name
	@test -n "$(REPOSITORY)" || { echo "REPOSITORY=owner/name is needed" >&2; exit 1; }
	@mkdir -p $(DIST)/krew; sed 's/PYTHON_VERSION/$(PYTHON_VERSION)/' manifests/krew/kubectl-netaware > $(DIST)/krew/kubectl-netaware
	@cp LICENSE $(DIST)/krew; chmod 755 $(DIST)/krew/kubectl-netaware
	@tar -C $(DIST)/krew --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -czf $(DIST)/kubectl-netaware.tar.gz kubectl-netaware LICENSE
	@sum=$$(sha256sum $(DIST)/kubectl-netaware.tar.gz | cut -d' ' -f1); sed "s|REPOSITORY|$(REPOSITORY)|; s/VERSION/$(VERSION)/; s/SHA256/$$sum/" \
	  manifests/krew/netaware.yaml > $(DIST)/netaware.yaml

.PHONY: kind
kind: ## Install, place, upgrade, uninstall on kind; KUBERNETES=1.37
	@.ci/kind $(KUBERNETES) $(VERSION)
