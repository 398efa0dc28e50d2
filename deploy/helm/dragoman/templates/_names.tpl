{{/* A name and the most characters it may have. One that is longer ends in a hash of all of it, so that no two become alike. */}}
{{- define "dragoman.shortened" -}}
{{- $name := index . 0 -}}
{{- $most := index . 1 -}}
{{- if gt (len $name) $most -}}
{{- printf "%s-%s" ($name | trunc (int (sub $most 9))) ($name | sha256sum | trunc 8) -}}
{{- else -}}
{{- $name -}}
{{- end -}}
{{- end -}}

{{/* The chart's name, or as a dependency its alias. */}}
{{- define "dragoman.name" -}}
{{- include "dragoman.shortened" (list (default .Chart.Name .Values.nameOverride) 63) -}}
{{- end -}}

{{/*
The name of all objects: short enough that those with something behind it fit Kubernetes' 63 characters, and that pods have
all of it, of which Kubernetes would cut off what is beyond 58 characters, with the 10 of their ReplicaSet and two dashes.
A release called by the chart's name needs no second; as a dependency it does, since it may contain several aliases.
*/}}
{{- define "dragoman.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- $alone := and .Chart.IsRoot (contains $name .Release.Name) -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name $name) $alone -}}
{{- include "dragoman.shortened" (list (default $full .Values.fullnameOverride) 46) -}}
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
helm.sh/chart: {{ include "dragoman.shortened" (list (printf "%s-%s" .Chart.Name .Chart.Version) 63) | replace "+" "_" | quote }}
{{- end -}}

{{- define "dragoman.metadata" -}}
name: {{ include "dragoman.fullname" . | quote }}
namespace: {{ .Release.Namespace | quote }}
labels:
  {{- include "dragoman.labels" . | nindent 2 }}
{{- end -}}

{{- define "dragoman.tag" -}}
{{- default (printf "%s%s" .Chart.AppVersion (ternary "-cuda" "" (gt (int .Values.gpus) 0))) .Values.image.tag -}}
{{- end -}}

{{- define "dragoman.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ include "dragoman.tag" $ }}{{ end }}
{{- end -}}
{{- end -}}
