{{- /* Minor version of the cluster's Kubernetes; some providers write "34+". */ -}}
{{- define "netaware.minor" -}}
{{- regexFind "[0-9]+" .Capabilities.KubeVersion.Minor -}}
{{- end -}}

{{- /* Non-empty if the cluster has MutatingAdmissionPolicy v1; without it a webhook gates pods. */ -}}
{{- define "netaware.hasMutatingPolicies" -}}
{{- if ge (include "netaware.minor" . | int) 36 -}}yes{{- end -}}
{{- end -}}

{{- /* The image of a program: (list . "agent"). A digest overrides a tag. */ -}}
{{- define "netaware.image" -}}
{{- $root := index . 0 -}}
{{- $image := index $root.Values.images (index . 1) -}}
{{- $tag := $image.tag -}}
{{- if and (not $tag) (eq (index . 1) "kubeScheduler") -}}
{{- /* By the cluster's minor version; for a newer cluster the newest known version, which may be one minor behind. */ -}}
{{- $known := $root.Files.Get "files/kube-scheduler-versions.yaml" | fromYaml -}}
{{- $tag = get $known (include "netaware.minor" $root) | default (get $known (keys $known | sortAlpha | last)) -}}
{{- end -}}
{{- $image.repository -}}
{{- if $image.digest -}}@{{ $image.digest }}{{- else -}}:{{ $tag | default $root.Chart.AppVersion }}{{- end -}}
{{- end -}}

{{- /* A shipped file, merged with values if there are any: (list . "files/agent.yaml" .Values.agent.config). */ -}}
{{- define "netaware.file" -}}
{{- $shipped := (index . 0).Files.Get (index . 1) -}}
{{- if index . 2 -}}{{- toYaml (mergeOverwrite (fromYaml $shipped) (index . 2)) -}}{{- else -}}{{- $shipped -}}{{- end -}}
{{- end -}}

{{- define "netaware.agentConfig" -}}
{{- include "netaware.file" (list . "files/agent.yaml" .Values.agent.config) -}}
{{- end -}}

{{- define "netaware.controllerConfig" -}}
{{- $file := ternary "files/descheduler.yaml" "files/controller.yaml" .Values.descheduler.enabled -}}
{{- include "netaware.file" (list . $file .Values.controller.config) -}}
{{- end -}}

{{- define "netaware.schedulerConfig" -}}
{{- .Values.scheduler.config | default (.Files.Get "files/kube-scheduler.yaml") -}}
{{- end -}}

{{- /* Name of a ConfigMap with a hash of its content, so that a change restarts the pods. The hash is that of kustomize, which has an
       empty name in the hashed object. */ -}}
{{- define "netaware.nameWithHash" -}}
{{- $name := index . 0 -}}
{{- $hex := dict "data" (dict (index . 1) (index . 2)) "kind" "ConfigMap" "name" "" | toJson | sha256sum | trunc 10 -}}
{{- printf "%s-%s" $name ($hex | replace "0" "g" | replace "1" "h" | replace "3" "k" | replace "a" "m" | replace "e" "t") -}}
{{- end -}}

{{- define "netaware.agentConfigName" -}}
{{- include "netaware.nameWithHash" (list "netaware-agent-config" "config.yaml" (include "netaware.agentConfig" .)) -}}
{{- end -}}

{{- define "netaware.controllerConfigName" -}}
{{- include "netaware.nameWithHash" (list "netaware-controller-config" "config.yaml" (include "netaware.controllerConfig" .)) -}}
{{- end -}}

{{- define "netaware.schedulerConfigName" -}}
{{- include "netaware.nameWithHash" (list "netaware-scheduler-config" "kube-scheduler.yaml" (include "netaware.schedulerConfig" .)) -}}
{{- end -}}
