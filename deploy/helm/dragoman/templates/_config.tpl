{{/* Where the models are in the container. */}}
{{- define "dragoman.modelsPath" -}}
{{- ternary .Values.models.image.path "/models" (eq .Values.models.source "image") -}}
{{- end -}}

{{/* server.yaml: the options of `config`, and those that the chart sets. */}}
{{- define "dragoman.config" -}}
{{- $options := deepCopy .Values.config -}}
{{- $_ := set $options "host" "0.0.0.0" -}}
{{- $_ := set $options "port" (int .Values.service.port) -}}
{{- $_ := set $options "metrics_port" (int .Values.metrics.port) -}}
{{- $_ := set $options "device" (ternary "cuda" "cpu" (gt (int .Values.gpus) 0)) -}}
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
{{- if .Values.apiKeys.secretName -}}
{{- $_ := set $options "api_keys" (printf "/etc/dragoman/keys/%s" .Values.apiKeys.key) -}}
{{- end -}}
{{ toYaml $options }}
{{- end -}}
