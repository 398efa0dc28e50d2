{{- define "dragoman.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* The name of all objects: short enough that those with something behind it fit Kubernetes' 63 characters. */}}
{{- define "dragoman.fullname" -}}
{{- $name := include "dragoman.name" . -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $full .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "dragoman.serviceAccountName" -}}
{{- default (ternary (include "dragoman.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name -}}
{{- end -}}

{{- define "dragoman.selectorLabels" -}}
app.kubernetes.io/name: {{ include "dragoman.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "dragoman.labels" -}}
{{ include "dragoman.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "dragoman.metadata" -}}
name: {{ include "dragoman.fullname" . }}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "dragoman.labels" . | nindent 2 }}
{{- end -}}

{{- define "dragoman.image" -}}
{{- $image := .Values.image -}}
{{- $tag := default (printf "%s%s" .Chart.AppVersion (ternary "-cuda" "" (gt (int .Values.gpus) 0))) $image.tag -}}
{{- if $image.digest -}}{{ $image.repository }}@{{ $image.digest }}{{- else -}}{{ $image.repository }}:{{ $tag }}{{- end -}}
{{- end -}}
