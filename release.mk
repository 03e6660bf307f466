# Images, chart and releases. Each step of .github/workflows/release.yaml is a target, which runs on any machine with its tools.
DIST ?= dist
OVERLAY ?= default
PLATFORMS ?= linux/amd64,linux/arm64
# The default registry of kubelets and docker; podman and buildah would use localhost.
IMAGE = $(or $(REGISTRY),docker.io/library)/netaware
PROGRAMS = agent controller
COMPILERS ?= x86_64-linux-gnu-gcc aarch64-linux-gnu-gcc
# Hatchling computes it once, only for targets that use it: the tag that is checked out, or the next version with the commit.
PYTHON_VERSION := $(if $(filter image push overlay kind version chart release-%,$(MAKECMDGOALS)),$(shell $(RUN) python -m hatchling version))
# PYTHON_VERSION as a semantic version, for images and chart. The tag of an image may not contain a plus.
VERSION = $(subst +,.,$(subst .dev,-dev,$(PYTHON_VERSION)))
ENGINE = engine=; for tool in docker podman buildah; do if $$tool info >/dev/null 2>&1; then engine=$$tool; break; fi; done; \
	test -n "$$engine" || { echo "install docker, podman or buildah, and let this user run it" >&2; exit 1; }
BUILD_ARGS = --build-arg VERSION=$(VERSION) --build-arg PYTHON_VERSION=$(PYTHON_VERSION) --build-arg REVISION="$$(git rev-parse HEAD 2>/dev/null || echo unknown)"
# Digest of a pushed image, by name.
digest = $$(sed -n 's/.*"containerimage.digest": *"\(sha256:[0-9a-f]*\)".*/\1/p' $(DIST)/$(1).json)
# Prints the path of a tool of tests/support/tools/builds.py, such as HELM.
TOOL = $(RUN) python -c 'import sys; from tests.support.tools import builds as t; print(t.find_or_build_tool(getattr(t, sys.argv[1])))'

.PHONY: version image push overlay check-release release-version release-images release-sign sbom licences chart release-chart release-wheels release-krew kind

version: ## Print the version of images and chart
	@echo $(VERSION)

image: ## Build both images with docker, podman or buildah; REGISTRY=host/team
	@set -eu; $(ENGINE); for name in $(PROGRAMS); do $$engine build -f Dockerfile.$$name -t "$(IMAGE)-$$name:$(VERSION)" $(BUILD_ARGS) $(ARGS) .; done

push: ## Push both images; REGISTRY=host/team
	@set -eu; $(ENGINE); for name in $(PROGRAMS); do $$engine push "$(IMAGE)-$$name:$(VERSION)"; done

overlay: ## Write an overlay with these images into dist/overlay; OVERLAY=any-scheduler REGISTRY=host/team KUBERNETES=1.36
	@$(if $(KUBERNETES),,echo "for Kubernetes 1.37; for another minor version add KUBERNETES=1.36" >&2)
	@mkdir -p $(DIST)/overlay; { echo "resources: [../../manifests/overlays/$(OVERLAY)]"; \
	  $(if $(KUBERNETES),echo "components: [../../manifests/components/kubernetes-$(KUBERNETES)]";) echo "images:"; for name in $(PROGRAMS); do \
	  echo "  - {name: netaware-$$name, newName: $(IMAGE)-$$name, newTag: $(VERSION)}"; done; } > $(DIST)/overlay/kustomization.yaml

check-release: ## Lint the chart; compare the table of licences
	@set -e; helm=$$($(TOOL) HELM); \
	  $(RUN) python manifests/helm/generate.py --version 0.0.0 --to $(DIST); $$helm lint --quiet $(DIST)/netaware
	@$(RUN) python .ci/image_packages.py licences --check

release-version: ## Check that the tag is the version; TAG=v1.2.3
	@test "$(TAG)" = "v$(VERSION)" || { echo "the tag is $(TAG), the version v$(VERSION)" >&2; exit 1; }

release-images: ## Build and push for all architectures, with SBOM and provenance; REGISTRY=host/team
	@test -n "$(REGISTRY)" || { echo "REGISTRY=host/team is needed" >&2; exit 1; }
	@mkdir -p $(DIST)
	@set -eu; for name in $(PROGRAMS); do docker buildx build -f Dockerfile.$$name -t "$(IMAGE)-$$name:$(VERSION)" \
	  --platform $(PLATFORMS) --sbom=true --provenance=mode=max --push --metadata-file $(DIST)/$$name.json \
	  $(BUILD_ARGS) $(ARGS) .; done

release-sign: ## Sign the pushed images by digest, keyless (cosign)
	@set -eu; $(foreach name,$(PROGRAMS),cosign sign --yes "$(IMAGE)-$(name)@$(call digest,$(name))";)

sbom: ## Write SPDX documents of the images into dist
	@$(RUN) python .ci/image_packages.py sbom $(DIST)

licences: ## Write the table of licences, docs/licences.md
	@$(RUN) python .ci/image_packages.py licences

chart: ## Build the Helm chart and pack it into dist; REGISTRY=host/team
	@$(RUN) python manifests/helm/generate.py --version $(VERSION) --registry "$(REGISTRY)" --digests $(DIST) --to $(DIST)
	@set -e; helm=$$($(TOOL) HELM); $$helm package $(DIST)/netaware --destination $(DIST)

release-chart: ## Push the packed chart to an OCI registry; REGISTRY=host/team
	@test -n "$(REGISTRY)" || { echo "REGISTRY=host/team is needed" >&2; exit 1; }
	@set -e; helm=$$($(TOOL) HELM); $$helm push $(DIST)/netaware-$(VERSION).tgz "oci://$(REGISTRY)/charts" $(ARGS)

release-wheels: ## Build wheels for two architectures, a pure one and the sdist; COMPILERS="cc" for this architecture only
	@set -e; for CC in $(COMPILERS); do export CC; $(RUN) python -m hatchling build -t wheel -d $(DIST)/python; done
	@export NETAWARE_PURE=1; $(RUN) python -m hatchling build -t wheel -t sdist -d $(DIST)/python

release-krew: ## Write the plugin's archive and krew's manifest into dist; REPOSITORY=owner/name
	@test -n "$(REPOSITORY)" || { echo "REPOSITORY=owner/name is needed" >&2; exit 1; }
	@mkdir -p $(DIST)/krew; sed 's/PYTHON_VERSION/$(PYTHON_VERSION)/' manifests/krew/kubectl-netaware > $(DIST)/krew/kubectl-netaware
	@cp LICENSE $(DIST)/krew; chmod 755 $(DIST)/krew/kubectl-netaware
	@tar -C $(DIST)/krew --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -czf $(DIST)/kubectl-netaware.tar.gz kubectl-netaware LICENSE
	@sum=$$(sha256sum $(DIST)/kubectl-netaware.tar.gz | cut -d' ' -f1); sed "s|REPOSITORY|$(REPOSITORY)|; s/VERSION/$(VERSION)/; s/SHA256/$$sum/" \
	  manifests/krew/netaware.yaml > $(DIST)/netaware.yaml

kind: ## Install, place pods, upgrade and uninstall on kind; KUBERNETES=1.37
	@.ci/kind $(KUBERNETES) $(VERSION)
