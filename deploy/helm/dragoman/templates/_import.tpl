{{/* The directory of the imported model in the volume. */}}
{{- define "dragoman.importPath" -}}
{{- with .Values.models.import -}}
/models/{{ default (base .model) .name }}/{{ .version }}
{{- end -}}
{{- end -}}

{{/* Whether pods import the model before they serve; empty for no. */}}
{{- define "dragoman.importsAtStart" -}}
{{- if and .Values.models.import.model (eq .Values.models.import.by "initContainer") -}}true{{- end -}}
{{- end -}}

{{/* The container that imports a model into the volume. A volume that has it already takes it a second. */}}
{{- define "dragoman.import" -}}
{{- $import := .Values.models.import -}}
- name: import
  image: {{ default (printf "%s:%s-import" .Values.image.repository .Chart.AppVersion) $import.image | quote }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args:
    - --from-transformers
    - {{ $import.model | quote }}
    {{- with $import.revision }}
    - --revision
    - {{ . | quote }}
    {{- end }}
    - --precision
    - {{ $import.precision }}
    - --name
    - {{ default (base $import.model) $import.name | quote }}
    - --version
    - {{ $import.version | quote }}
    - --if-needed
    {{- range $import.options }}
    - {{ . | quote }}
    {{- end }}
    - {{ include "dragoman.importPath" . | quote }}
  env:
    # The server ignores names that start with a dot.
    - {name: HF_HOME, value: /models/.huggingface}
    - {name: HF_HUB_DISABLE_PROGRESS_BARS, value: "1"}
    - name: OMP_NUM_THREADS
      valueFrom: {resourceFieldRef: {containerName: import, resource: limits.cpu}}
    {{- with $import.token.secretName }}
    - name: HF_TOKEN
      valueFrom: {secretKeyRef: {name: {{ . | quote }}, key: {{ $import.token.key | quote }}}}
    {{- end }}
    {{- with $import.env }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  resources: {{- toYaml $import.resources | nindent 4 }}
  securityContext: {{- include "dragoman.containerSecurity" nil | nindent 4 }}
  volumeMounts:
    - name: models
      mountPath: /models
      {{- with .Values.models.claim.subPath }}
      subPath: {{ . | quote }}
      {{- end }}
    - {name: scratch, mountPath: /tmp}
{{- end -}}
