{{/* Where the models are in the container. */}}
{{- define "dragoman.modelsPath" -}}
{{- ternary .Values.models.image.path "/models" (eq .Values.models.source "image") -}}
{{- end -}}

{{/* What computes: cpu, cuda, or each of several GPUs, which then have a worker process each. */}}
{{- define "dragoman.device" -}}
{{- $gpus := list -}}
{{- range $number := until (int .Values.gpus) -}}
{{- $gpus = append $gpus (printf "cuda:%d" $number) -}}
{{- end -}}
{{- if eq (len $gpus) 0 -}}cpu{{- else if eq (len $gpus) 1 -}}cuda{{- else -}}{{- join "," $gpus -}}{{- end -}}
{{- end -}}

{{/* server.yaml: the options of `config`, and those that the chart sets. */}}
{{- define "dragoman.config" -}}
{{- $options := deepCopy .Values.config -}}
{{- $_ := set $options "host" (default "0.0.0.0" $options.host) -}}
{{- $_ := set $options "port" (int .Values.service.port) -}}
{{- $_ := set $options "metrics_port" (int .Values.metrics.port) -}}
{{- if eq .Values.probes.protocol "grpc" -}}
{{- $_ := set $options "health_port" (int .Values.probes.port) -}}
{{- end -}}
{{- $_ := set $options "device" (include "dragoman.device" .) -}}
{{- if ne .Values.models.source "shipped" -}}
{{- $_ := set $options (ternary "model_repository" "bundle" .Values.models.repository) (include "dragoman.modelsPath" .) -}}
{{- end -}}
{{- with .Values.tls.secretName -}}
{{- $_ := set $options "tls_cert" "/etc/dragoman/tls/tls.crt" -}}
{{- $_ := set $options "tls_key" "/etc/dragoman/tls/tls.key" -}}
{{- end -}}
{{- if .Values.tls.clientAuthoritySecretName -}}
{{- $_ := set $options "tls_client_ca" (printf "/etc/dragoman/client-authority/%s" .Values.tls.clientAuthorityKey) -}}
{{- end -}}
{{- /* Nobody can tell an administrator from others where there are no keys. */ -}}
{{- if and (not .Values.apiKeys.secretName) (kindIs "invalid" $options.admin) -}}
{{- $_ := set $options "admin" false -}}
{{- end -}}
{{- if .Values.apiKeys.secretName -}}
{{- $_ := set $options "api_keys" (printf "/etc/dragoman/keys/%s" .Values.apiKeys.key) -}}
{{- end -}}
{{- range $name, $value := $options -}}
{{- /* Helm has whole numbers as floats, and would write 10000000 as 1e+07, which is text in YAML. */ -}}
{{- if and (kindIs "float64" $value) (eq $value (floor $value)) -}}
{{- $_ := set $options $name (int64 $value) -}}
{{- else if kindIs "invalid" $value -}}
{{- $_ := unset $options $name -}}
{{- end -}}
{{- end -}}
{{ toYaml $options }}
{{- end -}}
