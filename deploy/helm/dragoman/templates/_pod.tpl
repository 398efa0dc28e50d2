{{/* What the restricted profile of Pod Security asks of a container, and a root that nobody writes to. */}}
{{- define "dragoman.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "dragoman.podSecurity" -}}
runAsNonRoot: true
{{- with .Values.user }}
runAsUser: {{ int . }}
runAsGroup: {{ int . }}
fsGroup: {{ int . }}
fsGroupChangePolicy: OnRootMismatch
{{- end }}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "dragoman.startedAndReady" -}}
{{- $http := eq .Values.probes.protocol "http" -}}
startupProbe:
  {{- if $http }}
  httpGet: {path: /startupz, port: metrics}
  {{- else }}
  grpc: {port: {{ .Values.probes.port }}}
  {{- end }}
  periodSeconds: 1
  timeoutSeconds: 3
  failureThreshold: {{ .Values.probes.startupSeconds }}
readinessProbe:
  {{- if $http }}
  httpGet: {path: /readyz, port: metrics}
  {{- else }}
  grpc: {port: {{ .Values.probes.port }}}
  {{- end }}
  periodSeconds: 2
  timeoutSeconds: 3
  failureThreshold: 2
{{- end -}}

{{- define "dragoman.volumes" -}}
- name: config
  configMap: {name: {{ include "dragoman.fullname" . | quote }}}
- name: scratch
  emptyDir: {sizeLimit: 1Gi}
{{- with .Values.tls.secretName }}
- name: tls
  secret: {secretName: {{ . | quote }}, defaultMode: 0440}
{{- end }}
{{- with .Values.tls.clientAuthoritySecretName }}
- name: client-authority
  secret: {secretName: {{ . | quote }}, defaultMode: 0440}
{{- end }}
{{- with .Values.apiKeys.secretName }}
- name: keys
  secret: {secretName: {{ . | quote }}, defaultMode: 0440}
{{- end }}
{{- with .Values.models }}
{{- if eq .source "claim" }}
- name: models
  persistentVolumeClaim: {claimName: {{ .claim.name | quote }}, readOnly: {{ not (include "dragoman.importsAtStart" $) }}}
{{- else if eq .source "artifact" }}
- name: models
  image: {reference: {{ .artifact.reference | quote }}, pullPolicy: {{ .artifact.pullPolicy }}}
{{- else if eq .source "initContainer" }}
- name: models
  emptyDir: {sizeLimit: {{ .initContainer.sizeLimit }}}
{{- end }}
{{- end }}
{{- end -}}

{{- define "dragoman.mounts" -}}
- name: config
  mountPath: /etc/dragoman/server.yaml
  subPath: server.yaml
  readOnly: true
- name: scratch
  mountPath: /tmp
{{- if .Values.tls.secretName }}
- name: tls
  mountPath: /etc/dragoman/tls
  readOnly: true
{{- end }}
{{- if .Values.tls.clientAuthoritySecretName }}
- name: client-authority
  mountPath: /etc/dragoman/client-authority
  readOnly: true
{{- end }}
{{- if .Values.apiKeys.secretName }}
- name: keys
  mountPath: /etc/dragoman/keys
  readOnly: true
{{- end }}
{{- with .Values.models }}
{{- if has .source (list "claim" "artifact" "initContainer") }}
- name: models
  mountPath: /models
  readOnly: true
  {{- with (ternary .claim.subPath (ternary .artifact.subPath "" (eq .source "artifact")) (eq .source "claim")) }}
  subPath: {{ . | quote }}
  {{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "dragoman.initContainer" -}}
- name: models
  image: {{ .image | quote }}
  {{- with .command }}
  command: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .env }}
  env: {{- toYaml . | nindent 4 }}
  {{- end }}
  resources: {{- toYaml .resources | nindent 4 }}
  securityContext: {{- include "dragoman.containerSecurity" nil | nindent 4 }}
  volumeMounts:
    - {name: models, mountPath: /models}
    - {name: scratch, mountPath: /tmp}
{{- end -}}

{{/* CPU and memory, and the GPUs, whose request must equal their limit. */}}
{{- define "dragoman.resources" -}}
{{- $resources := deepCopy .Values.resources -}}
{{- if gt (int .Values.gpus) 0 -}}
{{- $gpus := dict .Values.gpuResource (int .Values.gpus) -}}
{{- $_ := set $resources "limits" (merge $gpus (default dict $resources.limits)) -}}
{{- end -}}
{{ toYaml $resources }}
{{- end -}}

{{- define "dragoman.tolerations" -}}
{{- $tolerations := .Values.tolerations -}}
{{- if gt (int .Values.gpus) 0 -}}
{{- $tolerations = append $tolerations (dict "key" "nvidia.com/gpu" "operator" "Exists" "effect" "NoSchedule") -}}
{{- end -}}
{{- with $tolerations -}}
tolerations: {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end -}}

{{- define "dragoman.topologySpread" -}}
{{- if kindIs "invalid" .Values.topologySpreadConstraints -}}
topologySpreadConstraints:
  - topologyKey: kubernetes.io/hostname
    maxSkew: 1
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- include "dragoman.selectorLabels" . | nindent 8 }}
    matchLabelKeys: [pod-template-hash]
{{- else -}}
{{- with .Values.topologySpreadConstraints -}}
topologySpreadConstraints: {{- toYaml . | nindent 2 }}
{{- end -}}
{{- end -}}
{{- end -}}
