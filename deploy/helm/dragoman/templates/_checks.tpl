{{/* Millicores of a quantity such as 2, 0.5 or 500m; empty for others. */}}
{{- define "dragoman.millicores" -}}
{{- $quantity := toString . -}}
{{- if regexMatch "^[0-9.]+m$" $quantity -}}
{{- trimSuffix "m" $quantity -}}
{{- else if regexMatch "^[0-9.]+$" $quantity -}}
{{- mulf (float64 $quantity) 1000 -}}
{{- end -}}
{{- end -}}

{{/* Checks that values.schema.json cannot express: contradictions between values. Each message names the value to change. */}}
{{- define "dragoman.check" -}}
{{- $v := .Values -}}
{{- $setBy := dict
      "port" "set service.port"
      "metrics_port" "set metrics.port"
      "health_port" "set probes.port"
      "bundle" "set models.source"
      "model_repository" "set models.source and models.repository"
      "device" "set gpus"
      "tls_cert" "set tls.secretName"
      "tls_key" "set tls.secretName"
      "tls_client_ca" "set tls.clientAuthoritySecretName"
      "api_keys" "set apiKeys.secretName" -}}
{{- range $option, $instead := $setBy -}}
{{- if hasKey $v.config $option -}}
{{- fail (printf "config.%s is set by the chart; %s" $option $instead) -}}
{{- end -}}
{{- end -}}
{{- $part := "[a-z0-9]+([._-]+[a-z0-9]+)*" -}}
{{- $registry := "([A-Za-z0-9.-]+|\\[[0-9A-Fa-f:]+\\])(:[0-9]+)?" -}}
{{- if not (regexMatch (printf "^(%s/)?%s(/%s)*$" $registry $part $part) $v.image.repository) -}}
{{- fail (printf "image.repository is %q, which is not an image name: expected REGISTRY/NAME in lower case; set the tag in image.tag, a digest in image.digest" $v.image.repository) -}}
{{- end -}}
{{- range $v.env -}}
{{- if hasPrefix "DRAGOMAN_" .name -}}
{{- fail (printf "env: %s would override the chart's configuration; set config.%s" .name (.name | trimPrefix "DRAGOMAN_" | lower)) -}}
{{- end -}}
{{- end -}}
{{- range $label := list "name" "instance" "version" -}}
{{- if hasKey $v.podLabels (printf "app.kubernetes.io/%s" $label) -}}
{{- fail (printf "podLabels: app.kubernetes.io/%s is set by the chart" $label) -}}
{{- end -}}
{{- end -}}
{{- if hasKey $v.podAnnotations "checksum/config" -}}
{{- fail "podAnnotations: checksum/config is set by the chart" -}}
{{- end -}}
{{- range $what := list "podMonitor" "rules" "dashboards" -}}
{{- range $label, $_ := (index $v.monitoring $what).labels -}}
{{- if hasKey (include "dragoman.labels" $ | fromYaml) $label -}}
{{- fail (printf "monitoring.%s.labels: %s is set by the chart" $what $label) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if not (hasPrefix "nvidia.com/" $v.gpuResource) -}}
{{- fail (printf "gpuResource is %s, but the server supports only NVIDIA GPUs; set nvidia.com/gpu, or a slice such as nvidia.com/mig-1g.10gb" $v.gpuResource) -}}
{{- end -}}
{{- if and (hasPrefix "nvidia.com/mig-" $v.gpuResource) (gt (int $v.gpus) 1) -}}
{{- fail (printf "gpus is %d, but a pod can use only one slice of a GPU (%s); set gpus: 1, and more replicas" (int $v.gpus) $v.gpuResource) -}}
{{- end -}}
{{- if and (gt (int $v.gpus) 0) (eq $v.models.source "shipped") -}}
{{- fail (printf "gpus is %d, but the model in the image (models.source: shipped) is in int8, which is for CPUs, and would stop the start; set models to one of your own, exported with dragoman-export --precision fp16" (int $v.gpus)) -}}
{{- end -}}
{{- range $which := list "requests" "limits" -}}
{{- range $resource, $_ := (index $v.resources $which) -}}
{{- if contains "/" $resource -}}
{{- if or (eq $resource $v.gpuResource) (hasPrefix "nvidia.com/" $resource) (hasSuffix ".com/gpu" $resource) -}}
{{- fail (printf "resources.%s: %s is set by the chart; set gpus and gpuResource" $which $resource) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $fullname := include "dragoman.fullname" . -}}
{{- if not (regexMatch "^[a-z]([a-z0-9-]*[a-z0-9])?$" $fullname) -}}
{{- fail (printf "the objects would be called %q, but the name of a Service must start with a letter, contain only lower-case letters, digits and dashes, and not end in a dash; set fullnameOverride, or rename the release or the alias" $fullname) -}}
{{- end -}}
{{- $name := include "dragoman.name" . -}}
{{- if not (regexMatch "^[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?$" $name) -}}
{{- fail (printf "the label app.kubernetes.io/name would be %q, but a label must start and end with a letter or digit; set nameOverride, or rename the alias" $name) -}}
{{- end -}}
{{- if and .Chart.IsRoot (hasKey $v "enabled") -}}
{{- fail "enabled is only for the condition of a parent chart; remove it from a release of this chart alone" -}}
{{- end -}}
{{- if or (eq (toString $v.config.host) "localhost") (hasPrefix "127." (toString $v.config.host)) (eq (toString $v.config.host) "::1") -}}
{{- fail (printf "config.host is %s, where neither clients nor probes can reach a pod; set 0.0.0.0, or :: in an IPv6 cluster" $v.config.host) -}}
{{- end -}}
{{- if and (eq $v.strategy.type "RollingUpdate") $v.strategy.rollingUpdate -}}
{{- if and (has (toString $v.strategy.rollingUpdate.maxSurge) (list "0" "0%")) (has (toString $v.strategy.rollingUpdate.maxUnavailable) (list "0" "0%")) -}}
{{- fail "strategy.rollingUpdate: maxSurge and maxUnavailable are both 0, so no pod could ever be replaced; set one of them to at least 1" -}}
{{- end -}}
{{- end -}}
{{- $requested := include "dragoman.millicores" (dig "requests" "cpu" "" $v.resources) -}}
{{- $limit := include "dragoman.millicores" (dig "limits" "cpu" "" $v.resources) -}}
{{- if and $requested $limit (gt (float64 $requested) (float64 $limit)) -}}
{{- fail (printf "resources.requests.cpu is %v, more than resources.limits.cpu, which is %v" $v.resources.requests.cpu $v.resources.limits.cpu) -}}
{{- end -}}
{{- if eq (int $v.service.port) (int $v.metrics.port) -}}
{{- fail (printf "service.port and metrics.port are both %d; gRPC and metrics need different ports" (int $v.metrics.port)) -}}
{{- end -}}
{{- if and (eq $v.probes.protocol "grpc") (has (int $v.probes.port) (list (int $v.service.port) (int $v.metrics.port))) -}}
{{- fail (printf "probes.port is %d, the same as service.port or metrics.port; health checks need a port of their own" (int $v.probes.port)) -}}
{{- end -}}
{{- if and (eq $v.models.source "shipped") $v.models.repository -}}
{{- fail "models.repository is true, but the model in the image (models.source: shipped) is one bundle; set it to false or choose another source" -}}
{{- end -}}
{{- if and (eq $v.models.source "claim") (not $v.models.claim.name) -}}
{{- fail "models.claim.name is empty; with models.source: claim it must name a PersistentVolumeClaim" -}}
{{- end -}}
{{- if eq $v.models.source "artifact" -}}
{{- if not $v.models.artifact.reference -}}
{{- fail "models.artifact.reference is empty; with models.source: artifact it must name an image, such as registry.example/model:1" -}}
{{- end -}}
{{- if semverCompare "<1.33.0-0" .Capabilities.KubeVersion.Version -}}
{{- fail (printf "models.source is artifact, but Kubernetes %s cannot mount images; 1.35 can, and 1.33 with the feature gate ImageVolume" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- end -}}
{{- if eq $v.models.source "initContainer" -}}
{{- if not $v.models.initContainer.image -}}
{{- fail "models.initContainer.image is empty; with models.source: initContainer it must name the image that downloads the model" -}}
{{- end -}}
{{- if and $v.networkPolicy.enabled (not $v.networkPolicy.egress) -}}
{{- fail "networkPolicy.egress is empty, so models.initContainer could not download anything; list where it may connect to, or set networkPolicy.enabled to false" -}}
{{- end -}}
{{- end -}}
{{- if $v.models.import.model -}}
{{- if or (ne $v.models.source "claim") (not $v.models.repository) -}}
{{- fail "models.import.model needs models.source: claim and models.repository: true, since the import adds MODEL/VERSION/ to the claim" -}}
{{- end -}}
{{- if and (include "dragoman.importsAtStart" .) $v.networkPolicy.enabled (not $v.networkPolicy.egress) -}}
{{- fail "networkPolicy.egress is empty, so models.import could not download anything; list where it may connect to, set networkPolicy.enabled to false, or models.import.by to job" -}}
{{- end -}}
{{- range $v.models.import.env -}}
{{- if eq .name "HF_TOKEN" "HF_HOME" -}}
{{- fail (printf "models.import.env: %s is set by the chart; for a token set models.import.token.secretName" .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $v.config.tracing $v.networkPolicy.enabled (not $v.networkPolicy.egress) -}}
{{- fail "networkPolicy.egress is empty, so no traces could be sent; list the collector, or set networkPolicy.enabled to false" -}}
{{- end -}}
{{- if and $v.tls.clientAuthoritySecretName (not $v.tls.secretName) -}}
{{- fail "tls.clientAuthoritySecretName needs tls.secretName: clients can present certificates only to a server that has one" -}}
{{- end -}}
{{- $needed := include "dragoman.stoppingSeconds" . | int -}}
{{- if lt (include "dragoman.graceSeconds" . | int) $needed -}}
{{- fail (printf "terminationGracePeriodSeconds is %d, but stopping may take %d s: config.drain_delay_seconds, config.drain_seconds and 5; set it to null, or lower those" (int $v.terminationGracePeriodSeconds) $needed) -}}
{{- end -}}
{{- if and (ne $v.autoscaling.by "none") (lt (int $v.autoscaling.maxReplicas) (int $v.autoscaling.minReplicas)) -}}
{{- fail (printf "autoscaling.maxReplicas is %d, less than autoscaling.minReplicas, which is %d" (int $v.autoscaling.maxReplicas) (int $v.autoscaling.minReplicas)) -}}
{{- end -}}
{{- if and (eq $v.autoscaling.by "keda") (not $v.autoscaling.keda.serverAddress) -}}
{{- fail "autoscaling.keda.serverAddress is empty; with autoscaling.by: keda it must be the address of Prometheus" -}}
{{- end -}}
{{- if and (eq $v.autoscaling.by "keda") $v.autoscaling.keda.authentication (not $v.autoscaling.keda.authModes) -}}
{{- fail "autoscaling.keda.authModes is empty; with autoscaling.keda.authentication it must name KEDA's authentication modes, such as bearer" -}}
{{- end -}}
{{- if and $v.autoscaling.keda.authModes (not $v.autoscaling.keda.authentication) -}}
{{- fail "autoscaling.keda.authModes needs autoscaling.keda.authentication, the TriggerAuthentication with the credentials" -}}
{{- end -}}
{{- if and $v.grpcRoute.enabled $v.tls.secretName (not $v.grpcRoute.backendTLS) -}}
{{- fail "grpcRoute.enabled with tls.secretName: a Gateway speaks plain text to pods, which then accept TLS only; remove one of them, or add a BackendTLSPolicy for the Service and set grpcRoute.backendTLS" -}}
{{- end -}}
{{- if and $v.monitoring.rules.enabled (not (contains "dragoman" $fullname)) -}}
{{- fail (printf "monitoring.rules.enabled is true, but the alerts find pods by the word dragoman in their names, and %s does not contain it; change fullnameOverride or nameOverride, or the alerts" $fullname) -}}
{{- end -}}
{{- if and $v.grpcRoute.enabled (not $v.grpcRoute.parentRefs) -}}
{{- fail "grpcRoute.parentRefs is empty; a route must name its Gateway" -}}
{{- end -}}
{{- end -}}
