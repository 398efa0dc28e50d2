{{- define "dragoman.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/*
The name of all objects: short enough that those with something behind it fit Kubernetes' 63 characters, and that pods have
all of it, of which Kubernetes would cut off what is beyond 58 characters, with the 10 of their ReplicaSet and two dashes.
*/}}
{{- define "dragoman.fullname" -}}
{{- $name := include "dragoman.name" . -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) -}}
{{- default $full .Values.fullnameOverride | trunc 46 | trimSuffix "-" -}}
{{- end -}}

{{- define "dragoman.serviceAccountName" -}}
{{- default (ternary (include "dragoman.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name -}}
{{- end -}}

{{- define "dragoman.selectorLabels" -}}
app.kubernetes.io/name: {{ include "dragoman.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "dragoman.labels" -}}
{{ include "dragoman.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | quote }}
{{- end -}}

{{- define "dragoman.metadata" -}}
name: {{ include "dragoman.fullname" . | quote }}
namespace: {{ .Release.Namespace | quote }}
labels:
  {{- include "dragoman.labels" . | nindent 2 }}
{{- end -}}

{{- define "dragoman.image" -}}
{{- $image := .Values.image -}}
{{- $tag := default (printf "%s%s" .Chart.AppVersion (ternary "-cuda" "" (gt (int .Values.gpus) 0))) $image.tag -}}
{{- if $image.digest -}}{{ $image.repository }}@{{ $image.digest }}{{- else -}}{{ $image.repository }}:{{ $tag }}{{- end -}}
{{- end -}}
